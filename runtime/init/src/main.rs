//! dsec-init: PID 1 of every sandbox (`run`); on the host, what prepares its mounts (`launch`) and
//! holds its file system still (`hold`).
mod agent;
mod cgroup;
mod child;
mod command;
mod frames;
mod heartbeat;
mod hold;
mod http;
mod init;
mod launch;
mod ring;
mod seccomp;
mod sys;

use cgroup::Cgroups;
use heartbeat::Expected;
use init::{Handed, Init};
use std::os::fd::RawFd;

const FIRST: RawFd = 3;

/// Values of `--name=value` arguments.
fn option(name: &str) -> String {
    let prefix = format!("--{name}=");
    std::env::args()
        .find_map(|a| a.strip_prefix(&prefix).map(str::to_owned))
        .unwrap_or_default()
}

/// Run as PID 1. Descriptors from 3: listener, two logs, end file, cgroup directory, more to join,
/// then the writable space and the root, which the agent reads and nobody in here uses.
fn run() -> Result<(), String> {
    let join = option("join")
        .parse::<RawFd>()
        .map_err(|_| "--join: a number is needed")?;
    for fd in FIRST..FIRST + 7 + join {
        // SAFETY: sets a flag; a descriptor that is not there is found at its first use.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: plain system calls. Not dumpable: the guest's root cannot trace PID 1 or see its
    // descriptors.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::umask(0o022);
    }
    seccomp::load().map_err(|e| format!("cannot load the system call filter: {e}"))?;
    let handed = Handed {
        listener: FIRST,
        rings: [FIRST + 1, FIRST + 2],
        end_file: FIRST + 3,
        cgroups: Cgroups {
            unified: option("cgroup") == "v2",
            directory: Some(FIRST + 4),
            join: (0..join).map(|n| FIRST + 5 + n).collect(),
        },
    };
    let expected = Expected {
        task_id: option("task"),
        role: option("role"),
        gpu_ids: option("gpus"),
    };
    let mut init = Init::new(handed, expected).map_err(|e| format!("cannot start: {e}"))?;
    init.run().map_err(|e| format!("event loop: {e}"))
}

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let result = match mode.as_str() {
        "run" => run(),
        "launch" => launch::launch(&std::env::args().nth(2).unwrap_or_default()),
        "hold" => hold::hold(&std::env::args().nth(2).unwrap_or_default()),
        "bootstrap" => {
            // the reference entry script, so that one file carries all that a node needs
            print!("{}", include_str!("../bootstrap.sh"));
            Ok(())
        }
        "version" => {
            println!("dsec-init {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        _ => Err("usage: dsec-init run|launch SPEC|hold PATH|bootstrap|version".to_owned()),
    };
    if let Err(why) = result {
        eprintln!("dsec-init: {why}");
        std::process::exit(1);
    }
}
