//! The process: an engine with its dataplanes, from its start until it is killed.

use portwarden::engine::{
    Engine, EngineOutputs, EngineParts, EngineReceivers, Heartbeat, Message, ModeWords, NodeWait,
    Reconfiguration, RemoveLeftovers, Replacement,
};
use portwarden::health::SharedHealth;
use portwarden::metrics::Metrics;
use portwarden_model::{Cluster, Dataplane, Family, Layers, PacerConfig, Settings, manifest};

use crate::api::NODE;
use crate::dataplane::ModelledDataplane;
use crate::flows::ModelledFlows;
use crate::kernel::{Place, SharedKernel, Time};
use crate::schedule::{Families, Mode};

/// What the operator has configured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Configuration {
    pub(crate) mode: Mode,
    pub(crate) families: Families,
    pub(crate) masquerade_all: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration { mode: Mode::Single, families: Families::Both, masquerade_all: false }
    }
}

impl Configuration {
    pub(crate) fn settings(self) -> Settings {
        Settings { masquerade_all: self.masquerade_all, ..Settings::new(NODE) }
    }

    pub(crate) fn families(self) -> &'static [Family] {
        match self.families {
            Families::Both => &Family::BOTH,
            Families::OnlyV4 => &[Family::V4],
        }
    }
}

impl Configuration {
    /// Where its dataplanes write to.
    pub(crate) fn places(self) -> Vec<Place> {
        let layers = self.mode.layers().iter();
        layers.flat_map(|layer| self.families().iter().map(|family| (*layer, *family))).collect()
    }
}

/// A running process.
pub(crate) struct Process {
    pub(crate) engine: Engine,
    pub(crate) health: SharedHealth,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) receivers: EngineReceivers,
    /// The last Node that it knew: a deleted Node keeps its addresses.
    pub(crate) known_node: Option<manifest::Node>,
    /// The configured mode; the mode in force may still be another one.
    configured: Mode,
    surroundings: Surroundings,
}

/// What every process finds on the host.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) kernel: SharedKernel,
    pub(crate) time: Time,
    /// Shared by all processes: building them takes longer than a schedule.
    pub(crate) metrics: Metrics,
}

impl Process {
    pub(crate) fn start(configuration: Configuration, surroundings: &Surroundings) -> Self {
        let Surroundings { kernel, time, metrics } = surroundings.clone();
        let health = SharedHealth::new(PacerConfig::default().sync_period);
        let heartbeat = Heartbeat::new(time.now());
        health.follow(heartbeat.clone());
        let (outputs, receivers) = EngineOutputs::new(1);
        let clock = time;
        let earlier = kernel.lock().udp_frontends(configuration);
        let mut engine = Engine::new(EngineParts {
            settings: configuration.settings(),
            words: words(configuration.mode),
            dataplanes: dataplanes(configuration, surroundings, &health),
            pacing: PacerConfig::default(),
            node_wait: NodeWait { pod_cidrs: None, ..NodeWait::FOR_API_SERVER },
            remove_leftovers: Some(remove_leftovers(kernel.clone())),
            check: Box::new(|_| Ok(())),
            flows: Box::new(ModelledFlows(kernel)),
            health: health.clone(),
            metrics,
            outputs,
            heartbeat: heartbeat.clone(),
            clock: Box::new(move || clock.moment()),
            activity: Default::default(),
        });
        engine.take_over(&earlier);
        let (configured, surroundings) = (configuration.mode, surroundings.clone());
        Process { engine, health, heartbeat, receivers, known_node: None, configured, surroundings }
    }

    /// Applies another configuration, as a reload does.
    pub(crate) fn reconfigure(&mut self, configuration: Configuration) {
        let other_mode = configuration.mode != self.configured;
        self.configured = configuration.mode;
        let kernel = self.surroundings.kernel.clone();
        kernel.lock().changing_mode = other_mode;
        let replacement = Replacement {
            words: words(configuration.mode),
            dataplanes: dataplanes(configuration, &self.surroundings, &self.health),
            remove_leftovers: other_mode.then(|| remove_leftovers(kernel)),
        };
        self.engine.take(Message::Reconfigure(Box::new(Reconfiguration {
            settings: configuration.settings(),
            pacing: PacerConfig::default(),
            dataplanes: Some(replacement),
        })));
    }

    /// Runs a function on the engine's cluster.
    pub(crate) fn inspect<T: Send + 'static>(
        &mut self,
        inspect: impl FnOnce(&Cluster) -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.engine.take(Message::Inspect(Box::new(move |cluster| {
            let _ = sender.send(inspect(cluster));
        })));
        receiver.recv().expect("the engine runs the function at once")
    }
}

fn words(mode: Mode) -> ModeWords {
    let name = match mode {
        Mode::Single => "single",
        Mode::Layered => "layered",
    };
    ModeWords { name, sync_failed: "a sync failed", counters: &[] }
}

fn dataplanes(
    configuration: Configuration,
    surroundings: &Surroundings,
    health: &SharedHealth,
) -> Vec<Box<dyn Dataplane>> {
    let Surroundings { kernel, time, .. } = surroundings;
    kernel.lock().configuration = configuration;
    let families = configuration.families();
    let mut layers = configuration.mode.layers().iter().copied();
    let base = layers.next().expect("a mode has a layer");
    let make = |layer, families: &[Family]| -> Box<dyn Dataplane> {
        Box::new(ModelledDataplane::new(layer, families, kernel, time, health))
    };
    match configuration.mode {
        Mode::Single => families.iter().map(|family| make(base, &[*family])).collect(),
        Mode::Layered => {
            let above = layers.map(|layer| make(layer, families)).collect();
            vec![Box::new(Layers::new(make(base, families), above))]
        }
    }
}

/// Removes everything that the newest configuration does not serve. Whatever it serves must be complete by then.
fn remove_leftovers(kernel: SharedKernel) -> RemoveLeftovers {
    Box::new(move || {
        let mut kernel = kernel.lock();
        let configuration = kernel.configuration;
        kernel.changing_mode = false;
        for place in configuration.places() {
            // What others removed without a notification, the engine cannot know.
            let table = kernel.table(place);
            if table.node.is_none() && table.unnoticed.is_none() {
                kernel.violation(format!("leftovers are removed before {place:?} is installed"));
            }
        }
        kernel.tables.retain(|place, _| configuration.places().contains(place));
    })
}
