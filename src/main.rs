//! The ready-made function: reads the streams that its settings name, and hands the records to the
//! handler that they name.

/// A handler that blocks its thread must not starve the renewals: there are always two threads.
const FEWEST_THREADS: usize = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.max(FEWEST_THREADS))
        .enable_all()
        .build()?
        .block_on(leasehold::lambda::run_configured())?;
    Ok(())
}
