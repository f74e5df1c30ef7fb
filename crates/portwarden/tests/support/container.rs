//! Runs a container of a manifest with runc, as a container runtime on a node would: within the limits that the manifest states.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use portwarden_testkit::netns::NamespaceCommand;
use serde_json::{Value, json};

use super::Rig;

/// What containers have that drop nothing.
const DEFAULT_CAPABILITIES: &str = "\
    AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP \
    SETUID SYS_CHROOT";

/// System calls that the default filters of containerd and CRI-O refuse to a container without further capabilities.
const REFUSED_CALLS: &str = "\
    acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init finit_module \
    fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter io_uring_register io_uring_setup \
    ioperm iopl kexec_file_load kexec_load keyctl lookup_dcookie mbind mount mount_setattr move_mount \
    move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pivot_root quotactl \
    quotactl_fd reboot request_key set_mempolicy setdomainname sethostname setns settimeofday swapoff swapon \
    syslog umount2 unshare uselib userfaultfd vhangup";

/// The image of `deploy/Dockerfile`, and what its containers mount.
pub(crate) struct Image {
    folder: PathBuf,
    /// Folders of this machine that stand for its other layers.
    layers: Vec<&'static str>,
    /// Folders or files for the volumes of the pod, by name.
    pub(crate) volumes: Vec<(&'static str, PathBuf)>,
    /// Folder with the token and the authority of the API server.
    pub(crate) service_account: PathBuf,
}

impl Image {
    /// The program with the capability that the image's build gives it, and this machine's libraries. With `programs` it is the image that has
    /// the iptables programs, too.
    pub(crate) fn new(folder: &Path, programs: bool, service_account: &Path) -> Result<Image> {
        let bin = folder.join("rootfs/usr/local/bin");
        fs::create_dir_all(&bin)?;
        let program = bin.join("portwarden");
        fs::copy(env!("CARGO_BIN_EXE_portwarden"), &program)?;
        symlink("portwarden", bin.join("kube-proxy"))?;
        for name in ["bin", "lib64", "sbin"] {
            symlink(format!("usr/{name}"), folder.join("rootfs").join(name))?;
        }
        // Not a link as a whole, so that there can be a mount below it.
        fs::create_dir(folder.join("rootfs/lib"))?;
        for entry in fs::read_dir("/usr/lib")? {
            let name = entry?.file_name();
            if name != "modules" {
                symlink(Path::new("../usr/lib").join(&name), folder.join("rootfs/lib").join(&name))?;
            }
        }
        let granted = Command::new("setcap").arg(file_capability()?).arg(&program).status();
        ensure!(granted.context("cannot run setcap; install libcap2-bin")?.success(), "setcap failed");
        // Those of the programs are only in one of the images.
        let layers = ["/usr/lib", "/usr/lib64", "/usr/bin", "/usr/sbin", "/etc/alternatives"];
        let layers = layers.into_iter().take(if programs { 5 } else { 2 });
        Ok(Image {
            folder: folder.to_owned(),
            layers: layers.filter(|folder| Path::new(folder).exists()).collect(),
            volumes: Vec::new(),
            service_account: service_account.to_owned(),
        })
    }

    /// The image in an archive that `scripts/image` made, and nothing of this machine.
    pub(crate) fn unpack(archive: &Path, tag: &str, folder: &Path, service_account: &Path) -> Result<Image> {
        let layout = folder.join("layout");
        fs::create_dir(&layout)?;
        run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&layout))?;
        let image = format!("{}:{tag}", layout.display());
        run(Command::new("umoci").args(["unpack", "--image", &image]).arg(folder.join("unpacked")))?;
        fs::rename(folder.join("unpacked/rootfs"), folder.join("rootfs"))?;
        Ok(Image {
            folder: folder.to_owned(),
            layers: Vec::new(),
            volumes: Vec::new(),
            service_account: service_account.to_owned(),
        })
    }

    /// The image's files.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("rootfs")
    }

    /// A container of the pod, ready to run on the node. `kind` is `containers` or `initContainers`.
    pub(crate) fn container(
        &self,
        pod: &Value,
        kind: &str,
        environment: &[(&str, String)],
    ) -> Result<Container> {
        let container = &pod[kind][0];
        let name = container["name"].as_str().context("a name")?;
        let bundle = self.folder.join(name);
        fs::create_dir_all(&bundle)?;
        let spec = self.spec(pod, container, environment)?;
        fs::write(bundle.join("config.json"), spec.to_string())?;
        // The folder's inode number makes the name unique on this machine, as cgroups need it.
        let id = format!("portwarden-test-{name}-{}", fs::metadata(&bundle)?.ino());
        let container = Container { state: self.folder.join("state"), id, bundle };
        container.delete()?;
        Ok(container)
    }

    fn spec(&self, pod: &Value, container: &Value, environment: &[(&str, String)]) -> Result<Value> {
        let security = &container["securityContext"];
        let privileged = security["privileged"] == true;
        let capabilities = capabilities(security, privileged)?;
        let rest = container["command"].as_array().into_iter().flatten().skip(1);
        let arguments = rest.chain(container["args"].as_array().into_iter().flatten());
        // The image's entry point, unless the manifest has another.
        let command = container["command"].as_array().and_then(|words| words.first()?.as_str());
        let mut words = vec![command.unwrap_or("/usr/local/bin/kube-proxy").to_owned()];
        for argument in arguments {
            words.push(expand(argument.as_str().context("text")?, environment));
        }
        let environment: Vec<String> =
            environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let filter = pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault" && !privileged;
        let mut linux = json!({ "namespaces": [{ "type": "pid" }, { "type": "ipc" }, { "type": "mount" }] });
        if !privileged {
            linux["readonlyPaths"] =
                json!(["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]);
            linux["maskedPaths"] = json!(["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"]);
        }
        if filter {
            // A capability opens the calls that it is for.
            let granted = |name: &str| capabilities.iter().any(|capability| capability == name);
            let open = |call: &&str| {
                *call == "bpf" && granted("CAP_BPF") || *call == "perf_event_open" && granted("CAP_PERFMON")
            };
            let refused: Vec<&str> = REFUSED_CALLS.split_whitespace().filter(|call| !open(call)).collect();
            linux["seccomp"] = json!({
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{ "names": refused, "action": "SCMP_ACT_ERRNO" }],
            });
        }
        // Not ambient: Kubernetes has no way to ask for that.
        let sets = json!({ "bounding": capabilities, "effective": capabilities, "permitted": capabilities });
        Ok(json!({
            "ociVersion": "1.0.2",
            "process": {
                "args": words,
                "env": environment,
                "cwd": "/",
                "user": { "uid": number(&security["runAsUser"])?, "gid": number(&security["runAsGroup"])? },
                "capabilities": sets,
                "noNewPrivileges": security["allowPrivilegeEscalation"] == false,
                "rlimits": [{ "type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096 }],
            },
            "root": { "path": self.folder.join("rootfs"), "readonly": security["readOnlyRootFilesystem"] == true },
            "mounts": self.mounts(pod, container, privileged)?,
            "linux": linux,
        }))
    }

    fn mounts(&self, pod: &Value, container: &Value, privileged: bool) -> Result<Value> {
        let access = if privileged { "rw" } else { "ro" };
        let mut mounts = vec![
            json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
            json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "nodev", "noexec", access] }),
        ];
        let mut bind = |source: &Path, destination: &str, access: &str| {
            mounts.push(json!({ "destination": destination, "type": "bind", "source": source, "options": ["rbind", access] }));
        };
        for folder in &self.layers {
            bind(Path::new(folder), folder, "ro");
        }
        bind(&self.service_account, "/var/run/secrets/kubernetes.io/serviceaccount", "ro");
        let volumes = pod["volumes"].as_array().context("volumes")?;
        for mount in container["volumeMounts"].as_array().context("mounts")? {
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).context("a volume")?;
            let source = self.volumes.iter().find(|(name, _)| mount["name"] == **name);
            let (_, source) = source.with_context(|| format!("nothing for {mount}"))?;
            // Of a ConfigMap the runtime gets a folder that it may not change.
            let access =
                if mount["readOnly"] == true || volume["configMap"].is_object() { "ro" } else { "rw" };
            bind(source, mount["mountPath"].as_str().context("a path")?, access);
        }
        Ok(mounts.into())
    }
}

/// A container that can run; dropping it ends and removes it.
pub(crate) struct Container {
    state: PathBuf,
    id: String,
    bundle: PathBuf,
}

impl Container {
    /// Runs it in the foreground, on the node.
    pub(crate) fn command(&self, rig: &Rig) -> NamespaceCommand {
        rig.command("runc")
            .arg("--root")
            .arg(&self.state)
            .args(["run", "--bundle"])
            .arg(&self.bundle)
            .arg(&self.id)
    }

    /// The id, on this machine, of its first process.
    pub(crate) fn process_id(&self) -> Result<u32> {
        let output =
            Command::new("runc").arg("--root").arg(&self.state).args(["state", &self.id]).output()?;
        let state: Value = serde_json::from_slice(&output.stdout)?;
        Ok(u32::try_from(state["pid"].as_u64().context("a process id")?)?)
    }

    fn delete(&self) -> Result<()> {
        let mut command = Command::new("runc");
        command.arg("--root").arg(&self.state).args(["delete", "--force", &self.id]);
        command.output().context("cannot run runc; install runc")?;
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // One that has ended is gone already.
        let _ = self.delete();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}; is it installed?"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// What the image's build passes to `setcap`.
fn file_capability() -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/Dockerfile");
    let text = fs::read_to_string(file)?;
    let mut words = text.split_whitespace().skip_while(|word| *word != "setcap");
    Ok(words.nth(1).context("the Dockerfile calls setcap")?.to_owned())
}

fn capabilities(security: &Value, privileged: bool) -> Result<Vec<String>> {
    let list = |field: &str| -> Vec<&str> {
        let names = security["capabilities"][field].as_array();
        names.into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let (dropped, added) = (list("drop"), list("add"));
    let mut names: Vec<String> = if privileged {
        all_capabilities()?
    } else {
        let kept = |name: &&str| !dropped.contains(&"ALL") && !dropped.contains(name);
        DEFAULT_CAPABILITIES.split_whitespace().filter(kept).map(str::to_owned).collect()
    };
    names.extend(added.into_iter().map(str::to_owned));
    Ok(names.into_iter().map(|name| format!("CAP_{name}")).collect())
}

/// Everything that this process may pass on; a container cannot get more.
fn all_capabilities() -> Result<Vec<String>> {
    let output =
        Command::new("capsh").arg("--print").output().context("cannot run capsh; install libcap2-bin")?;
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Bounding set =")).context("capabilities")?;
    let names = line.split(',').map(|name| name.trim().trim_start_matches("cap_").to_uppercase());
    Ok(names.filter(|name| !name.is_empty() && name.parse::<u32>().is_err()).collect())
}

/// Replaces `$(NAME)` as the kubelet does.
fn expand(text: &str, environment: &[(&str, String)]) -> String {
    environment.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
}

/// A user or group; root unless stated.
fn number(value: &Value) -> Result<u64> {
    if value.is_null() { Ok(0) } else { value.as_u64().with_context(|| format!("{value} is not a number")) }
}

/// Applies a strategic merge patch: objects are merged, lists of objects by their name, other lists are replaced.
pub(crate) fn merge(target: &mut Value, patch: &Value) -> Result<()> {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key.clone()).or_insert(Value::Null), value)?;
            }
        }
        (Value::Array(target), Value::Array(patch)) if patch.iter().all(|item| item["name"].is_string()) => {
            for item in patch {
                match target.iter_mut().find(|old| old["name"] == item["name"]) {
                    Some(old) => merge(old, item)?,
                    None => target.push(item.clone()),
                }
            }
        }
        (target, patch) if target.is_null() || target.is_array() == patch.is_array() => {
            *target = patch.clone();
        }
        (target, patch) => bail!("{patch} cannot replace {target}"),
    }
    Ok(())
}

/// Lets every user read a file or folder.
pub(crate) fn readable(path: &Path) -> Result<()> {
    let folder = fs::metadata(path)?.is_dir();
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(if folder { 0o755 } else { 0o644 }))?)
}
