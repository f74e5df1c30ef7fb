//! Portwarden: a drop-in replacement for kube-proxy.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let called_as = arguments.next().unwrap_or_default();
    portwarden::command::main(&called_as, &arguments.collect::<Vec<_>>())
}
