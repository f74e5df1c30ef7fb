//! Portwarden.
fn main() {}
