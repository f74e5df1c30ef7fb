//! The part of the simulation that runs in `make test`; `make simulate SEEDS=...` runs more.

#[test]
fn ten_thousand_schedules_violate_no_invariant() {
    if let Err(failure) = portwarden_simulation::run_seeds(0..10_000) {
        panic!("{failure}");
    }
}
