//! Whether the kernel's clock is synchronised.
#![allow(unsafe_code, reason = "adjtimex(2) has no safe wrapper")]

use nix::errno::Errno;

/// Asks the kernel whether a time service keeps the clock right. Changes nothing.
pub fn is_synchronised() -> Result<bool, Errno> {
    // SAFETY: `timex` consists of integers, for which zero is valid; with `modes` 0 the kernel only fills it in.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live value of the type that the kernel expects, and the kernel keeps no reference to it.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    Errno::result(answer).map(|state| state != libc::TIME_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers() {
        is_synchronised().expect("an answer");
    }
}
