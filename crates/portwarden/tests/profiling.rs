//! Profiles of the running program. Needs the feature `profiling`: `cargo test -p portwarden --features profiling --test profiling`.

mod support;

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use support::{METRICS, Rig, cluster_cidr, node};

fn config(profiling: bool) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: \"{}\"\n\
         conntrack: {{maxPerCore: 0}}\nenableProfiling: {profiling}\n",
        cluster_cidr()
    )
}

/// A profile of the running program: its functions, and the sum of the values of one type.
fn profile(rig: &Rig, path: &str, kind: &str) -> Result<(BTreeSet<String>, i64)> {
    let url = format!("http://127.0.0.1:{METRICS}/debug/pprof/{path}");
    let file = rig.path("profile");
    let target = file.to_str().context("a plain path")?;
    rig.node().command("curl").args(["-sSf", "--max-time", "60", "-o", target, &url]).run()?;
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(&file)?).read_to_end(&mut bytes)?;
    let profile = <portwarden_profiling::proto::Profile as prost::Message>::decode(&*bytes)?;
    let text = |number: i64| profile.string_table[usize::try_from(number).expect("a number")].clone();
    let index =
        profile.sample_type.iter().position(|value| text(value.kind) == kind).context("no such type")?;
    let functions = profile.function.iter().map(|function| text(function.name)).collect();
    Ok((functions, profile.sample.iter().map(|sample| sample.value[index]).sum()))
}

#[test]
fn profiles_of_the_running_program_name_its_functions() -> Result<()> {
    let mut rig = Rig::new()?;
    rig.objects(&[node()])?;
    rig.write("config.yaml", &config(false))?;
    let path = rig.path("config.yaml");
    rig.start(&["--config", path.to_str().context("a plain path")?])?;
    rig.wait_until("profiles to be refused", || Ok(rig.get(METRICS, "/debug/pprof/heap")?.0 == 404))?;
    rig.write("config.yaml", &config(true))?;
    rig.wait_until("profiling to be on", || Ok(rig.get(METRICS, "/debug/pprof/")?.0 == 200))?;
    // Something to do while it is sampled.
    let end = AtomicBool::new(false);
    let (cpu, samples) = std::thread::scope(|scope| {
        let busy = scope.spawn(|| -> Result<()> {
            while !end.load(Ordering::Relaxed) {
                rig.get(METRICS, "/metrics")?;
            }
            Ok(())
        });
        let sampled = profile(&rig, "profile?seconds=2", "samples");
        end.store(true, Ordering::Relaxed);
        busy.join().expect("no panic")?;
        sampled
    })?;
    ensure!(samples > 0 && cpu.iter().any(|name| name.contains("portwarden::metrics")), "{samples} {cpu:?}");
    rig.wait_until("something to be allocated", || {
        let (functions, bytes) = profile(&rig, "allocs", "alloc_space")?;
        rig.get(METRICS, "/metrics")?;
        Ok(bytes > 0 && functions.iter().any(|name| name.contains("portwarden")))
    })?;
    profile(&rig, "heap", "inuse_space")?;
    ensure!(rig.get(METRICS, "/debug/pprof/profile?seconds=301")?.0 == 400, "a profile is bounded");
    rig.write("config.yaml", &config(false))?;
    rig.wait_until("profiling to be off", || Ok(rig.get(METRICS, "/debug/pprof/")?.0 == 404))?;
    ensure!(rig.get(METRICS, "/debug/pprof/profile")?.0 == 404);
    Ok(())
}
