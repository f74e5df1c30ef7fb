//! The command line: parse, build, run, report. The exit status is chosen here.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tracing::{error, info};

use crate::app::{self, App, Signals, StartupOptions};
use crate::commands::{self, print};
use crate::config::{self, Config, LoadedConfig, Notice};
use crate::flags::{self, Action, Flags, Invocation, Program};
use crate::host;
use crate::logging::{self, Logs, end_on_panic};
use crate::modes;

/// Runs the program with the arguments after its name.
pub fn main(called_as: &str, arguments: &[String]) -> ExitCode {
    let program = Program::from_path(called_as);
    if let (Program::Portwarden, [name, arguments @ ..]) = (program, arguments)
        && let Some(command) = commands::find(name)
    {
        return commands::main(command, arguments);
    }
    let parsed = match flags::parse(program, arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            if error.wants_usage() {
                eprint!("{}", flags::usage(program));
            }
            eprintln!("Error: {error}");
            return ExitCode::FAILURE;
        }
    };
    for line in &parsed.deprecations {
        eprintln!("{line}");
    }
    match parsed.invocation {
        Invocation::Print(text) => {
            print(&format!("{text}\n"));
            ExitCode::SUCCESS
        }
        Invocation::Run(flags) => {
            let outcome = execute(program, *flags);
            if let Err(error) = &outcome {
                error!(err = format!("{error:#}"), "command failed");
            }
            logging::flush();
            if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

fn execute(program: Program, flags: Flags) -> anyhow::Result<()> {
    let loaded = config::load(program, &flags, config::read_file);
    let logs = match &loaded {
        Ok(loaded) => Logs::new(&loaded.config.logging),
        // Without a valid configuration, the default log format reports the error.
        Err(_) => Arc::default(),
    };
    logs.start();
    let loaded = loaded?;
    // Which mode would run does not matter to a clean-up, which removes the rules of all.
    let cleans_up = program == Program::Portwarden && flags.action() == Action::Cleanup;
    let matters = |notice: &&Notice| !(cleans_up && matches!(notice, Notice::ModeDefaulted));
    loaded.notices.iter().filter(matters).for_each(app::log_notice);
    if loaded.config.logging.verbosity >= 1 {
        for (name, value) in flags.listing(program) {
            info!(target: logging::PLAIN, "FLAG: --{name}={value:?}");
        }
    }
    dispatch(program, flags, loaded, logs).inspect_err(|error| {
        // kube-proxy logs the error here and again in the caller; alerts may search for either line.
        if program == Program::KubeProxy {
            error!(err = format!("{error:#}"), "Error running ProxyServer");
        }
    })
}

fn dispatch(program: Program, flags: Flags, loaded: LoadedConfig, logs: Arc<Logs>) -> anyhow::Result<()> {
    let LoadedConfig { config, notices } = loaded;
    match flags.action() {
        Action::WriteConfig(path) => {
            std::fs::write(&path, config::to_yaml(&config.document))
                .with_context(|| format!("cannot write the configuration to {path:?}"))?;
            info!(file = path, "Wrote configuration");
            Ok(())
        }
        Action::Cleanup => clean_up(&config),
        Action::InitOnly => app::prepare_only(&config),
        Action::Run => {
            let version = flags::reported_version(flags.version()).to_owned();
            run(StartupOptions { program, flags, config, notices, version }, logs)
        }
    }
}

fn run(options: StartupOptions, logs: Arc<Logs>) -> anyhow::Result<()> {
    end_on_panic();
    let page_wanted = options.config.servers.page.is_some();
    info!(version = options.version, portwarden = crate::version::OWN, "Version info");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime for watches and servers")?;
    let result = runtime.block_on(async {
        // First, so that a signal during the start is neither lost nor ends PID 1 silently.
        let mut signals = Signals::new().context("cannot listen to signals")?;
        let app = App::start(options, logs).await?;
        let (healthz, metrics) = app.bound();
        let page = match app.page_bound() {
            Some(address) => format!("http://{address}"),
            None if page_wanted => "not listening".to_owned(),
            None => "off".to_owned(),
        };
        info!(healthz = listening(healthz), metrics = listening(metrics), page, "Started");
        app.run(&mut signals).await
    });
    // Background tasks must not delay the exit.
    runtime.shutdown_background();
    result
}

/// An address as an operator would type it.
fn listening(bound: Option<SocketAddr>) -> String {
    bound.map_or_else(|| "not listening".to_owned(), |address| address.to_string())
}

fn clean_up(config: &Config) -> anyhow::Result<()> {
    let failures = modes::clean_up(None, config);
    for failure in &failures {
        error!(err = format!("{failure:#}"), "Cannot remove rules");
    }
    if failures.is_empty() {
        info!("The rules of all modes are removed");
        return Ok(());
    }
    const FAILED: &str = "encountered an error while tearing down rules";
    host::check_privileges(Path::new("/proc")).context(FAILED)?;
    anyhow::bail!("{FAILED}: {} of the steps failed, see above", failures.len())
}
