//! Runs the corpus of every fuzz target (`fuzz/corpus`) through the function that `make fuzz` runs on random input.

#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::path::Path;

#[test]
fn every_target_survives_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets::ALL {
        let folder = corpus.join(name);
        let files =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut count = 0;
        for file in files {
            let path = file.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a readable file");
            // Every beginning of an input is one, too.
            for end in [bytes.len(), bytes.len() / 2, bytes.len() / 3] {
                target(&bytes[..end]);
            }
            count += 1;
        }
        assert!(count >= 3, "{name} has {count} inputs");
    }
}
