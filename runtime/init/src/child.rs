//! Starting one command: user, directory, environment, cgroup, pipes.
use crate::cgroup::Leaf;
use crate::sys;
use serde_json::Value;
use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What to run, ready for the system calls.
pub struct Order {
    argv: Vec<CString>,
    envp: Vec<CString>,
    candidates: Vec<CString>,
    workdir: CString,
    pub workdir_text: String,
    pub program_text: String,
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
}

/// A started command, as its parent sees it. `fail` tells a failed start; it closes on exec.
pub struct Spawned {
    pub pid: libc::pid_t,
    pub stdin: RawFd,
    pub outputs: [RawFd; 2],
    pub fail: RawFd,
}

/// Steps of a start that can fail, as the byte on the fail pipe.
const STEP_CGROUP: u8 = 1;
const STEP_WORKDIR: u8 = 2;
const STEP_USER: u8 = 3;
const STEP_EXEC: u8 = 4;

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items
        .iter()
        .filter_map(|v| v.as_str().map(str::to_owned))
        .collect()
}

/// A user of the sandbox: numeric ids, supplementary groups, home.
#[derive(Debug, PartialEq, Eq)]
pub struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
}

/// Look up `name`, `uid`, `name:group` or `uid:gid` in the sandbox's own files.
pub fn find_user(text: &str, passwd: &str, group: &str) -> Result<User, String> {
    let (user, wanted_group) = match text.split_once(':') {
        Some((u, g)) => (u, Some(g)),
        None => (text, None),
    };
    let row = passwd
        .lines()
        .map(|l| l.split(':').collect::<Vec<_>>())
        .find(|f| f.len() >= 6 && (f[0] == user || f[2] == user));
    let (name, uid, gid, home) = match (&row, user.parse::<u32>()) {
        (Some(f), _) => (
            f[0],
            f[2].parse()
                .map_err(|_| format!("user {user:?} has no numeric id"))?,
            f[3].parse()
                .map_err(|_| format!("user {user:?} has no numeric group"))?,
            f[5],
        ),
        (None, Ok(id)) => ("", id, id, "/"),
        (None, Err(_)) if user.is_empty() || user == "root" => ("root", 0, 0, "/root"),
        (None, Err(_)) => return Err(format!("user {user:?} is not in /etc/passwd of the image")),
    };
    let rows: Vec<Vec<&str>> = group
        .lines()
        .map(|l| l.split(':').collect())
        .filter(|f: &Vec<&str>| f.len() >= 4)
        .collect();
    let gid = match wanted_group {
        None => gid,
        Some(g) => match (rows.iter().find(|f| f[0] == g), g.parse()) {
            (Some(f), _) => f[2]
                .parse()
                .map_err(|_| format!("group {g:?} has no numeric id"))?,
            (None, Ok(id)) => id,
            (None, Err(_)) => return Err(format!("group {g:?} is not in /etc/group of the image")),
        },
    };
    let groups = rows
        .iter()
        .filter(|f| !name.is_empty() && f[3].split(',').any(|member| member == name))
        .filter_map(|f| f[2].parse().ok())
        .collect();
    Ok(User {
        uid,
        gid,
        groups,
        home: home.to_owned(),
    })
}

impl Order {
    /// Read an order; relative programs are looked up on the PATH of the order's environment.
    pub fn parse(value: &Value) -> Result<Order, String> {
        let command = strings(&value["command"]);
        let program = command
            .first()
            .filter(|p| !p.is_empty())
            .ok_or("the command is empty")?;
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let group = std::fs::read_to_string("/etc/group").unwrap_or_default();
        let user = find_user(value["user"].as_str().unwrap_or(""), &passwd, &group)?;
        let mut env: Vec<(String, String)> = Vec::new();
        if let Some(map) = value["env"].as_object() {
            for (key, item) in map {
                env.push((key.clone(), item.as_str().unwrap_or_default().to_owned()));
            }
        }
        for (key, default) in [("PATH", DEFAULT_PATH), ("HOME", user.home.as_str())] {
            if !env.iter().any(|(k, _)| k == key) {
                env.push((key.to_owned(), default.to_owned()));
            }
        }
        let path = env
            .iter()
            .find(|(k, _)| k == "PATH")
            .map(|(_, v)| v.clone())
            .unwrap_or_default();
        let candidates = if program.contains('/') {
            vec![sys::cstring(program)?]
        } else {
            let directories = path.split(':').map(|d| if d.is_empty() { "." } else { d });
            directories
                .map(|d| sys::cstring(&format!("{d}/{program}")))
                .collect::<Result<_, _>>()?
        };
        let workdir = value["workdir"]
            .as_str()
            .filter(|w| !w.is_empty())
            .unwrap_or("/");
        Ok(Order {
            argv: command
                .iter()
                .map(|a| sys::cstring(a))
                .collect::<Result<_, _>>()?,
            envp: env
                .iter()
                .map(|(k, v)| sys::cstring(&format!("{k}={v}")))
                .collect::<Result<_, _>>()?,
            candidates,
            workdir: sys::cstring(workdir)?,
            workdir_text: workdir.to_owned(),
            program_text: program.clone(),
            uid: user.uid,
            gid: user.gid,
            groups: user.groups,
        })
    }

    /// Words for a failed start, from the fail pipe's bytes.
    pub fn explain(&self, report: &[u8]) -> String {
        let errno = report
            .get(1..5)
            .and_then(|b| b.try_into().ok())
            .map_or(0, i32::from_ne_bytes);
        let text = sys::errno_text(errno);
        match report.first() {
            Some(&STEP_CGROUP) => format!("cannot enter the sandbox's cgroup: {text}"),
            Some(&STEP_WORKDIR) => format!("working directory {:?}: {text}", self.workdir_text),
            Some(&STEP_USER) => format!("cannot become user {}:{}: {text}", self.uid, self.gid),
            _ => format!("program {:?}: {text}", self.program_text),
        }
    }

    /// Start the command in a session of its own.
    pub fn spawn(&self, leaf: Option<&Leaf>, join: &[RawFd]) -> io::Result<Spawned> {
        let mut held = Vec::new();
        let mut pipes = [(0, 0); 4];
        for slot in &mut pipes {
            match sys::pipe() {
                Ok(pair) => {
                    held.extend([pair.0, pair.1]);
                    *slot = pair;
                }
                Err(e) => {
                    held.into_iter().for_each(sys::close);
                    return Err(e);
                }
            }
        }
        let [input, out, err, fail] = pipes;
        let argv = pointers(&self.argv);
        let envp = pointers(&self.envp);
        let mut procs: Vec<RawFd> = join.to_vec();
        procs.extend(leaf.map(|l| l.procs));
        // SAFETY: init has one thread; the child only makes system calls until exec or _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let stdio = [input.0, out.1, err.1];
            let (step, errno) = self.become_it(&procs, stdio, &argv, &envp);
            let mut report = vec![step];
            report.extend_from_slice(&errno.to_ne_bytes());
            // the parent may be gone; exit either way
            let _lost = sys::write(fail.1, &report);
            // SAFETY: leaves without running the parent's destructors.
            unsafe { libc::_exit(127) };
        }
        if pid < 0 {
            let error = io::Error::last_os_error();
            held.into_iter().for_each(sys::close);
            return Err(error);
        }
        for fd in [input.0, out.1, err.1, fail.1] {
            sys::close(fd);
        }
        for fd in [input.1, out.0, err.0, fail.0] {
            sys::nonblocking(fd);
        }
        Ok(Spawned {
            pid,
            stdin: input.1,
            outputs: [out.0, err.0],
            fail: fail.0,
        })
    }

    /// In the child: never returns on success; else the step and errno.
    fn become_it(
        &self,
        procs: &[RawFd],
        stdio: [RawFd; 3],
        argv: &[*const libc::c_char],
        envp: &[*const libc::c_char],
    ) -> (u8, i32) {
        let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
        // SAFETY: system calls with pointers that live until exec.
        unsafe {
            libc::setsid();
            for procs in procs {
                if libc::write(*procs, c"0".as_ptr().cast(), 1) != 1 {
                    return (STEP_CGROUP, errno());
                }
            }
            for (target, source) in stdio.iter().enumerate() {
                libc::dup2(*source, target as RawFd);
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::umask(0o022);
            if libc::setgroups(self.groups.len(), self.groups.as_ptr()) != 0
                || libc::setgid(self.gid) != 0
                || libc::setuid(self.uid) != 0
            {
                return (STEP_USER, errno());
            }
            // after the change of user, so that a directory the user may not enter is refused
            if libc::chdir(self.workdir.as_ptr()) != 0 {
                return (STEP_WORKDIR, errno());
            }
            let mut worst = libc::ENOENT;
            for path in &self.candidates {
                libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr());
                let code = errno();
                if code != libc::ENOENT && code != libc::ENOTDIR {
                    worst = code;
                }
            }
            (STEP_EXEC, worst)
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    let mut list: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
    list.push(std::ptr::null());
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nextra:x:44:app,other\n";

    #[test]
    fn users_by_name_number_and_group() {
        let app = find_user("app", PASSWD, GROUP).unwrap();
        assert_eq!(
            app,
            User {
                uid: 1000,
                gid: 1001,
                groups: vec![44],
                home: "/home/app".into()
            }
        );
        assert_eq!(find_user("1000", PASSWD, GROUP).unwrap().gid, 1001);
        assert_eq!(find_user("app:extra", PASSWD, GROUP).unwrap().gid, 44);
        let number = find_user("7:8", PASSWD, GROUP).unwrap();
        assert_eq!((number.uid, number.gid), (7, 8));
        assert_eq!(find_user("root", "", "").unwrap().uid, 0);
    }

    #[test]
    fn unknown_user_is_named() {
        assert!(
            find_user("nobody2", PASSWD, GROUP)
                .unwrap_err()
                .contains("nobody2")
        );
    }

    #[test]
    fn order_needs_a_command_and_refuses_nul() {
        let empty = serde_json::json!({"command": []});
        assert!(Order::parse(&empty).is_err());
        let nul = serde_json::json!({"command": ["a\u{0}b"]});
        assert!(Order::parse(&nul).err().unwrap().contains("NUL"));
    }

    #[test]
    fn path_comes_from_the_order() {
        let order = serde_json::json!({"command": ["tool"], "env": {"PATH": "/x:/y"}});
        let order = Order::parse(&order).unwrap();
        let found: Vec<_> = order
            .candidates
            .iter()
            .map(|c| c.to_str().unwrap())
            .collect();
        assert_eq!(found, ["/x/tool", "/y/tool"]);
    }
}
