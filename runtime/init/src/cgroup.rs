//! Leaf cgroups, one per command, so that a command's whole tree can be found and killed.
//!
//! The agent made the sandbox's cgroups and hands over open descriptors; nothing of the hierarchy
//! is visible to the guest.
use crate::sys;
use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;

/// Where commands go: a directory to make leaves in, and further `cgroup.procs` to join (v1).
pub struct Cgroups {
    pub unified: bool,
    pub directory: Option<RawFd>,
    pub join: Vec<RawFd>,
}

/// The cgroup of one command.
pub struct Leaf {
    name: CString,
    directory: RawFd,
    /// `cgroup.procs`, open for writing.
    pub procs: RawFd,
}

fn open_at(directory: RawFd, name: &str, flags: libc::c_int) -> io::Result<RawFd> {
    let name = CString::new(name).map_err(io::Error::other)?;
    // SAFETY: a valid C string and a descriptor that we own.
    sys::check(unsafe { libc::openat(directory, name.as_ptr(), flags | libc::O_CLOEXEC) })
}

fn read_at(directory: RawFd, name: &str) -> String {
    let mut text = Vec::new();
    if let Ok(fd) = open_at(directory, name, libc::O_RDONLY) {
        let mut buffer = [0; 4096];
        while let Ok(n) = sys::read(fd, &mut buffer) {
            if n == 0 {
                break;
            }
            text.extend_from_slice(&buffer[..n]);
        }
        sys::close(fd);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn write_at(directory: RawFd, name: &str, text: &str) {
    if let Ok(fd) = open_at(directory, name, libc::O_WRONLY) {
        // a cgroup file that refuses leaves the other means of killing
        let _refused = sys::write(fd, text.as_bytes());
        sys::close(fd);
    }
}

impl Cgroups {
    /// Make the leaf of a command. None where the sandbox has no cgroups (unit tests).
    pub fn leaf(&self, name: &str) -> io::Result<Option<Leaf>> {
        let Some(parent) = self.directory else {
            return Ok(None);
        };
        let c_name = CString::new(name).map_err(io::Error::other)?;
        // SAFETY: a valid C string and a descriptor that we own.
        let made = sys::check(unsafe { libc::mkdirat(parent, c_name.as_ptr(), 0o755) });
        match made {
            Err(e) if e.raw_os_error() != Some(libc::EEXIST) => return Err(e),
            _ => {}
        }
        let directory = open_at(parent, name, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let procs = open_at(directory, "cgroup.procs", libc::O_WRONLY)?;
        Ok(Some(Leaf {
            name: c_name,
            directory,
            procs,
        }))
    }

    /// Remove an empty leaf; gives it back while processes are left in it.
    pub fn remove(&self, leaf: Leaf) -> Option<Leaf> {
        let parent = self.directory?;
        // SAFETY: a valid C string and a descriptor that we own.
        let code = unsafe { libc::unlinkat(parent, leaf.name.as_ptr(), libc::AT_REMOVEDIR) };
        if code != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY) {
            return Some(leaf);
        }
        sys::close(leaf.directory);
        sys::close(leaf.procs);
        None
    }

    /// SIGKILL everything in the leaf, once. Call again until the command is reaped.
    pub fn kill(&self, leaf: &Leaf) {
        if self.unified {
            write_at(leaf.directory, "cgroup.kill", "1");
            return;
        }
        // no more forks, so that killing catches up with a fork bomb
        write_at(leaf.directory, "pids.max", "0");
        for pid in read_at(leaf.directory, "cgroup.procs").lines() {
            if let Ok(pid) = pid.parse::<libc::pid_t>()
                && pid > 1
            {
                // SAFETY: plain system call.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }

    /// How often a fork in this leaf was refused at the process limit.
    pub fn pids_refused(&self, leaf: &Leaf) -> u64 {
        counter(&read_at(leaf.directory, "pids.events"), "max")
    }
}

fn counter(text: &str, key: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_reads_flat_keyed_files() {
        assert_eq!(counter("max 12\n", "max"), 12);
        assert_eq!(counter("low 0\noom_kill 3\n", "oom_kill"), 3);
        assert_eq!(counter("", "max"), 0);
    }

    #[test]
    fn without_cgroups_there_is_no_leaf() {
        let none = Cgroups {
            unified: false,
            directory: None,
            join: vec![],
        };
        assert!(none.leaf("m").unwrap().is_none());
    }
}
