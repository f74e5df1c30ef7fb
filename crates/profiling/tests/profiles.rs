//! Profiles of this very test, decoded again.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flate2::read::GzDecoder;
use portwarden_profiling::proto::Profile;
use portwarden_profiling::{Cancel, CpuError, HeapView, SamplingAllocator, cpu, heap, sample_heap};
use prost::Message;

#[global_allocator]
static ALLOCATOR: SamplingAllocator = SamplingAllocator;

const LARGE: usize = 8 << 20;

fn decode(profile: &[u8]) -> Profile {
    let mut bytes = Vec::new();
    GzDecoder::new(profile).read_to_end(&mut bytes).expect("compressed");
    Profile::decode(&*bytes).expect("a profile")
}

fn text(profile: &Profile, number: i64) -> &str {
    &profile.string_table[usize::try_from(number).expect("a number")]
}

/// The functions on the stacks of all samples whose value of this type is not 0, and the sum of these values for those with `function`.
fn found(profile: &Profile, kind: &str, function: &str) -> (BTreeSet<String>, i64) {
    let index =
        profile.sample_type.iter().position(|value| text(profile, value.kind) == kind).expect("this type");
    let (mut all, mut sum) = (BTreeSet::new(), 0);
    for sample in profile.sample.iter().filter(|sample| sample.value[index] != 0) {
        let functions: BTreeSet<String> = sample
            .location_id
            .iter()
            .flat_map(|id| {
                &profile.location.iter().find(|location| location.id == *id).expect("a location").line
            })
            .map(|line| {
                profile.function.iter().find(|function| function.id == line.function_id).expect("a function")
            })
            .map(|function| text(profile, function.name).to_owned())
            .collect();
        if functions.iter().any(|name| name.contains(function)) {
            sum += sample.value[index];
        }
        all.extend(functions);
    }
    (all, sum)
}

#[inline(never)]
fn keeps_much_memory() -> Vec<Vec<u8>> {
    (0..64).map(|_| black_box(vec![1; LARGE / 64])).collect()
}

#[inline(never)]
fn keeps_many_small_things() -> Vec<Arc<[u8; 64]>> {
    (0..LARGE / 64).map(|_| black_box(Arc::new([1; 64]))).collect()
}

/// One test: there is one allocator and one heap.
#[test]
fn the_heap_is_shown_by_function_and_forgotten_when_freed() {
    let before = keeps_much_memory();
    sample_heap(true);
    // Freed while sampling is on, but never looked at.
    drop(before);
    let (much, small) = (keeps_much_memory(), keeps_many_small_things());
    let profile = decode(&heap(HeapView::InUse));
    assert_eq!(text(&profile, profile.default_sample_type), "inuse_space");
    for function in ["keeps_much_memory", "keeps_many_small_things"] {
        let (all, bytes) = found(&profile, "inuse_space", function);
        // Sixteen looks are expected; to be off by this factor is less likely than one in a billion.
        assert!((LARGE as i64 / 8..LARGE as i64 * 4).contains(&bytes), "{function} keeps {bytes}: {all:?}");
    }
    let innermost = |profile: &Profile| {
        let first = profile.sample.iter().filter_map(|sample| sample.location_id.first());
        first
            .filter_map(|id| {
                profile.location.iter().find(|location| location.id == *id)?.line.last().copied()
            })
            .filter_map(|line| profile.function.iter().find(|function| function.id == line.function_id))
            .map(|function| text(profile, function.name).to_owned())
            .collect::<Vec<_>>()
    };
    assert!(
        !innermost(&profile).iter().any(|name| name.contains("portwarden_profiling")),
        "{:?}",
        innermost(&profile)
    );

    drop((much, small));
    let profile = decode(&heap(HeapView::Allocated));
    assert_eq!(text(&profile, profile.default_sample_type), "alloc_space");
    assert_eq!(found(&profile, "inuse_space", "keeps_").1, 0, "nothing is left");
    assert!(found(&profile, "alloc_space", "keeps_").1 > LARGE as i64 / 4, "but it was there");

    sample_heap(false);
    assert!(decode(&heap(HeapView::InUse)).sample.is_empty(), "the end forgets everything");
}

#[inline(never)]
fn burns_time(end: &AtomicBool) -> u64 {
    let mut sum = 0_u64;
    while !end.load(Ordering::Relaxed) {
        for number in 0..10_000_u64 {
            sum = black_box(sum.wrapping_mul(31).wrapping_add(number));
        }
    }
    sum
}

/// One test: there is one CPU profile at a time.
#[test]
fn processor_time_is_shown_by_function_one_profile_at_a_time() {
    let end = Arc::new(AtomicBool::new(false));
    let burning = Arc::clone(&end);
    let burner = std::thread::Builder::new()
        .name("burner".to_owned())
        .spawn(move || burns_time(&burning))
        .expect("a thread");
    let profile = decode(
        &cpu(Duration::from_secs(1), &Cancel::default()).expect("the kernel takes samples; are we root?"),
    );
    let (all, samples) = found(&profile, "samples", "burns_time");
    assert!(samples > 0, "{all:?}");
    let (all, time) = found(&profile, "cpu", "burns_time");
    assert_eq!(time, samples * 10_000_000, "{all:?}");
    assert!(all.iter().any(|name| name.contains("std::thread")), "the whole stack is walked: {all:?}");
    assert!(
        profile
            .sample
            .iter()
            .flat_map(|sample| &sample.label)
            .any(|label| text(&profile, label.str) == "burner")
    );
    assert!(profile.mapping.iter().any(|mapping| mapping.has_functions));

    let (cancel, long) = (Cancel::default(), Duration::from_secs(600));
    let (first, second) = std::thread::scope(|scope| {
        let profiles = [(); 2].map(|()| scope.spawn(|| cpu(long, &cancel)));
        // Whichever comes second is refused at once; the other one waits for the end.
        while !profiles.iter().any(|profile| profile.is_finished()) {
            std::thread::yield_now();
        }
        cancel.cancel();
        let [first, second] = profiles.map(|profile| profile.join().expect("no panic"));
        (first, second)
    });
    assert!(matches!((&first, &second), (Err(CpuError::Busy), Ok(_)) | (Ok(_), Err(CpuError::Busy))));
    end.store(true, Ordering::Relaxed);
    burner.join().expect("it ends");
}
