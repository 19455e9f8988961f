//! On the host: build the private mounts of a sandbox, then become the OCI runtime.
//!
//! All mounts are made in a mount namespace of this process, which ends with the sandbox: there is
//! nothing to unmount later, whatever crashes. The specification is a JSON file by the agent.
use crate::sys;
use serde_json::Value;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CONFIG_SIZE: usize = 304;
const LOOP_CONFIG_FLAGS: usize = 60;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LOOP_MAJOR: u32 = 7;

type Outcome<T> = Result<T, String>;

fn text<'a>(value: &'a Value, key: &str) -> Outcome<&'a str> {
    value[key]
        .as_str()
        .ok_or_else(|| format!("launch specification: {key} is missing"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn paths<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    list(value, key).iter().filter_map(Value::as_str).collect()
}

fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong, data: &str) -> Outcome<()> {
    let [c_source, c_target, c_kind, c_data] = [source, target, kind, data].map(sys::cstring);
    let (c_source, c_target, c_kind, c_data) = (c_source?, c_target?, c_kind?, c_data?);
    // SAFETY: four valid C strings.
    let code = unsafe {
        libc::mount(
            c_source.as_ptr(),
            c_target.as_ptr(),
            c_kind.as_ptr(),
            flags,
            c_data.as_ptr().cast(),
        )
    };
    sys::check(code)
        .map(drop)
        .map_err(|e| format!("mount {kind} at {target}: {e}"))
}

/// Bring the loopback interface of the new network namespace up.
fn loopback_up() -> io::Result<()> {
    // SAFETY: a zeroed ifreq is valid; the name is shorter than its field.
    unsafe {
        let socket = sys::check(libc::socket(
            libc::AF_INET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0,
        ))?;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let code = libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw const request);
        let result = sys::check(code).map(drop);
        sys::close(socket);
        result
    }
}

/// Open a loop device; where /dev does not show it (in a pod), make a node of our own.
fn open_loop(number: i32, nodes: &str) -> io::Result<File> {
    let path = format!("/dev/loop{number}");
    let is_device = fs::metadata(&path).is_ok_and(|m| m.file_type().is_block_device());
    let path = if is_device {
        path
    } else {
        format!("{nodes}/loop{number}")
    };
    if !is_device && !Path::new(&path).exists() {
        let name = CString::new(path.as_str()).map_err(io::Error::other)?;
        let device = libc::makedev(LOOP_MAJOR, number as u32);
        // SAFETY: a valid C string.
        let code = unsafe { libc::mknod(name.as_ptr(), libc::S_IFBLK | 0o600, device) };
        if code != 0 && io::Error::last_os_error().kind() != io::ErrorKind::AlreadyExists {
            return Err(io::Error::last_os_error());
        }
    }
    File::options().read(true).write(true).open(path)
}

/// Attach the image to a free loop device that detaches itself after the last use.
fn attach(image: &str, nodes: &str) -> io::Result<(File, i32)> {
    let backing = File::options().read(true).write(true).open(image)?;
    let control = File::options()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    let mut config = [0u8; LOOP_CONFIG_SIZE];
    config[..4].copy_from_slice(&(backing.as_raw_fd() as u32).to_ne_bytes());
    config[LOOP_CONFIG_FLAGS..LOOP_CONFIG_FLAGS + 4]
        .copy_from_slice(&LO_FLAGS_AUTOCLEAR.to_ne_bytes());
    let mut last = io::Error::other("no free loop device");
    for _ in 0..200 {
        // SAFETY: no argument.
        let number =
            sys::check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) })?;
        let device = open_loop(number, nodes)?;
        // SAFETY: the buffer has the size of struct loop_config.
        let code = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, config.as_ptr()) };
        match sys::check(code) {
            Ok(_) => return Ok((device, number)),
            // somebody else took it between the two calls
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Mount the writable space: an image of its own size, or memory where loop devices are missing.
fn mount_disk(disk: &Value) -> Outcome<()> {
    let at = text(disk, "at")?;
    if text(disk, "kind")? == "tmpfs" {
        let size = disk["bytes"]
            .as_u64()
            .ok_or("launch specification: disk.bytes is missing")?;
        let data = format!("size={size},mode=0755");
        return mount("dsec", at, "tmpfs", libc::MS_NODEV, &data);
    }
    let nodes = text(disk, "nodes")?;
    let image = text(disk, "image")?;
    let (device, number) = attach(image, nodes).map_err(|e| format!("loop device: {e}"))?;
    let mut source = format!("/dev/loop{number}");
    if !fs::metadata(&source).is_ok_and(|m| m.file_type().is_block_device()) {
        source = format!("{nodes}/loop{number}");
    }
    let data = "nobarrier,noinit_itable,nodiscard";
    mount(&source, at, "ext4", libc::MS_NODEV | libc::MS_NOATIME, data)?;
    drop(device);
    Ok(())
}

fn populate(upper: &str, spec: &Value) -> Outcome<()> {
    let place = |entry: &Value| -> Outcome<(String, u32)> {
        let path = format!("{upper}/{}", text(entry, "path")?.trim_start_matches('/'));
        Ok((path, entry["mode"].as_u64().unwrap_or(0o755) as u32))
    };
    for entry in list(spec, "dirs") {
        let (path, mode) = place(entry)?;
        fs::create_dir_all(&path).map_err(|e| format!("{path}: {e}"))?;
        fs::set_permissions(&path, PermissionsExt::from_mode(mode))
            .map_err(|e| format!("{path}: {e}"))?;
        let id = |key: &str| entry[key].as_u64().map(|n| n as u32);
        std::os::unix::fs::chown(&path, id("uid"), id("gid"))
            .map_err(|e| format!("{path}: {e}"))?;
    }
    for entry in list(spec, "files") {
        let (path, mode) = place(entry)?;
        fs::write(&path, text(entry, "content")?).map_err(|e| format!("{path}: {e}"))?;
        fs::set_permissions(&path, PermissionsExt::from_mode(mode))
            .map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

fn mount_root(spec: &Value) -> Outcome<()> {
    let at = text(&spec["disk"], "at")?;
    mount_disk(&spec["disk"])?;
    for directory in ["upper", "work"] {
        let path = format!("{at}/{directory}");
        fs::create_dir(&path).map_err(|e| format!("{path}: {e}"))?;
    }
    populate(&format!("{at}/upper"), spec)?;
    // short relative names: the options of a mount must fit a page, and the guest can read them
    let home = text(spec, "home")?;
    std::env::set_current_dir(home).map_err(|e| format!("{home}: {e}"))?;
    let lower = paths(spec, "lower").join(":");
    let data = format!(
        "lowerdir={lower},upperdir=disk/upper,workdir=disk/work,redirect_dir=off,index=off,\
         xino=off,metacopy=off,volatile"
    );
    mount(
        "overlay",
        text(spec, "rootfs")?,
        "overlay",
        libc::MS_NODEV,
        &data,
    )?;
    std::env::set_current_dir("/").map_err(|e| format!("/: {e}"))
}

/// The writable space and the whole root file system, for snapshots: once the runtime has changed
/// the root, no path leads to the first, and the second is covered by the mounts of the container.
fn roots(spec: &Value) -> Outcome<[RawFd; 2]> {
    let open = |path: &str| {
        let file = File::open(path).map_err(|e| format!("{path}: {e}"))?;
        Ok::<RawFd, String>(file.into_raw_fd())
    };
    Ok([
        open(text(&spec["disk"], "at")?)?,
        open(text(spec, "rootfs")?)?,
    ])
}

/// Put the descriptors at 3 and up, in order, without close-on-exec.
fn hand_down(fds: &[RawFd]) -> io::Result<()> {
    const AWAY: RawFd = 200;
    let mut safe = Vec::new();
    for fd in fds {
        // SAFETY: duplicates a descriptor; checked.
        safe.push(sys::check(unsafe {
            libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, AWAY)
        })?);
    }
    for (at, fd) in safe.iter().enumerate() {
        // SAFETY: as above; dup2 clears close-on-exec on the copy.
        sys::check(unsafe { libc::dup2(*fd, 3 + at as RawFd) })?;
    }
    Ok(())
}

/// Do all of it; returns only on failure.
pub fn launch(path: &str) -> Outcome<()> {
    let content = fs::read(path).map_err(|e| format!("{path}: {e}"))?;
    let spec: Value = serde_json::from_slice(&content).map_err(|e| format!("{path}: {e}"))?;
    for procs in paths(&spec, "joinSelf") {
        fs::write(procs, "0").map_err(|e| format!("{procs}: {e}"))?;
    }
    let numbers = list(&spec, "fds").iter().filter_map(Value::as_i64);
    let mut fds: Vec<RawFd> = numbers.map(|n| n as RawFd).collect();
    let directory = text(&spec, "userCgroup")?;
    fds.push(
        File::open(directory)
            .map_err(|e| format!("{directory}: {e}"))?
            .into_raw_fd(),
    );
    for procs in paths(&spec, "joinUser") {
        let file = File::options()
            .write(true)
            .open(procs)
            .map_err(|e| format!("{procs}: {e}"))?;
        fds.push(file.into_raw_fd());
    }
    // SAFETY: plain system call.
    sys::check(unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET) })
        .map_err(|e| format!("new namespaces: {e}"))?;
    mount("none", "/", "", libc::MS_REC | libc::MS_SLAVE, "")?;
    loopback_up().map_err(|e| format!("loopback interface: {e}"))?;
    if let Some(hidden) = spec["hide"].as_str().filter(|h| !h.is_empty()) {
        let name = sys::cstring(hidden)?;
        // SAFETY: a valid C string.
        sys::check(unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) })
            .map_err(|e| format!("hide {hidden}: {e}"))?;
    }
    mount_root(&spec)?;
    fds.extend(roots(&spec)?);
    hand_down(&fds).map_err(|e| format!("descriptors: {e}"))?;
    let argv = paths(&spec, "exec");
    let program = argv.first().ok_or("launch specification: exec is empty")?;
    let argv: Vec<CString> = argv
        .iter()
        .map(|a| sys::cstring(a))
        .collect::<Result<_, _>>()?;
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: a null-terminated array of C strings that live until exec.
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    Err(format!("{program}: {}", io::Error::last_os_error()))
}
