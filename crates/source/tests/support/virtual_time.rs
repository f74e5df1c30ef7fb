//! A clock that jumps ahead whenever there is nothing left to do, while sockets stay real.

/// Runs a test, with everything in it, on one thread and on such a clock. Servers have to run inside.
pub fn run<T: Send + 'static>(test: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        // Sockets are looked at after every step of every task: else the clock would jump over answers that are there already.
        .event_interval(1)
        .build()
        .expect("a runtime");
    // The same look is missing after steps of the outermost future, so it is to have none with sockets.
    runtime.block_on(async { tokio::spawn(test).await }).unwrap_or_else(|error| {
        match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("the test was cancelled: {error}"),
        }
    })
}
