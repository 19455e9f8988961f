//! The system calls that nothing in a sandbox may make, as a filter that init loads on itself.
//!
//! A list of refusals, not of permissions: programs of any age run, and the kernel's own bitmap
//! makes unlisted calls free. Calls newer than the list do not exist for the guest (ENOSYS).
use std::io;

const ARCH: u32 = if cfg!(target_arch = "aarch64") {
    0xC000_00B7
} else {
    0xC000_003E
};
/// The newest system call that this list was written against (mseal).
const NEWEST: u32 = 462;
const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const fn refuse(errno: i32) -> u32 {
    0x0005_0000 | errno as u32
}

/// Refused with EPERM whatever the arguments.
const REFUSED: &[libc::c_long] = &[
    // kernel, clock and machine
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    443, // quotactl_fd
    libc::SYS_vhangup,
    // mounts and namespaces: file systems are the platform's
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    442, // mount_setattr
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // large attack surface, no use in a sandbox
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// ioctl requests that are refused: file attributes that carry quota, extent swaps, typing into
/// somebody else's terminal.
const REFUSED_IOCTLS: &[u32] = &[
    0x401c_5820, // FS_IOC_FSSETXATTR
    0x4008_6602, // FS_IOC_SETFLAGS
    0xc0c0_586d, // XFS_IOC_SWAPEXT
    0x5412,      // TIOCSTI
    0x541c,      // TIOCLINUX
];

/// The families of sockets that exist for the guest. Others have no network namespace (vsock leads
/// to the hypervisor), or are rarely used code of the kernel.
const FAMILIES: &[libc::c_int] = &[
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// Bits of clone's flags that make a namespace.
const NAMESPACES: u32 = 0x7e02_0000;

const LOAD: u16 = 0x20;
const JEQ: u16 = 0x15;
const JGT: u16 = 0x25;
const JSET: u16 = 0x45;
const RETURN: u16 = 0x06;
const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
/// Low word of an argument (little-endian machines).
const fn offset_argument(n: u32) -> u32 {
    16 + 8 * n
}

fn op(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The filter's program.
pub fn program() -> Vec<libc::sock_filter> {
    let mut p = vec![
        op(LOAD, OFFSET_ARCH, 0, 0),
        op(JEQ, ARCH, 1, 0),
        op(RETURN, KILL, 0, 0),
        op(LOAD, OFFSET_NR, 0, 0),
        // also refuses the x32 calls, whose numbers have a high bit set
        op(JGT, NEWEST, 0, 1),
        op(RETURN, refuse(libc::ENOSYS), 0, 0),
        // clone3's flags are behind a pointer: libraries fall back to clone
        op(JEQ, libc::SYS_clone3 as u32, 0, 1),
        op(RETURN, refuse(libc::ENOSYS), 0, 0),
    ];
    for number in REFUSED {
        p.push(op(JEQ, *number as u32, 0, 1));
        p.push(op(RETURN, refuse(libc::EPERM), 0, 0));
    }
    p.extend([
        op(JEQ, libc::SYS_clone as u32, 0, 4),
        op(LOAD, offset_argument(0), 0, 0),
        op(JSET, NAMESPACES, 0, 1),
        op(RETURN, refuse(libc::EPERM), 0, 0),
        op(RETURN, ALLOW, 0, 0),
    ]);
    let families = FAMILIES.len() as u8;
    p.push(op(JEQ, libc::SYS_socket as u32, 0, families + 3));
    p.push(op(LOAD, offset_argument(0), 0, 0));
    for (at, family) in FAMILIES.iter().enumerate() {
        p.push(op(JEQ, *family as u32, families - at as u8, 0));
    }
    p.push(op(RETURN, refuse(libc::EAFNOSUPPORT), 0, 0));
    p.push(op(RETURN, ALLOW, 0, 0));
    p.extend([
        op(JEQ, libc::SYS_ioctl as u32, 1, 0),
        op(RETURN, ALLOW, 0, 0),
        op(LOAD, offset_argument(1), 0, 0),
    ]);
    for request in REFUSED_IOCTLS {
        p.push(op(JEQ, *request, 0, 1));
        p.push(op(RETURN, refuse(libc::EPERM), 0, 0));
    }
    p.push(op(RETURN, ALLOW, 0, 0));
    p
}

/// Load it on this process; every child inherits it. Needs no_new_privs.
pub fn load() -> io::Result<()> {
    let program = program();
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program during the call.
    let code = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Run the program on one call, as the kernel would.
    fn verdict(arch: u32, nr: u32, arguments: [u64; 2]) -> u32 {
        let p = program();
        let (mut pc, mut a) = (0usize, 0u32);
        loop {
            let i = p[pc];
            pc += 1;
            let jump = |taken: bool| usize::from(if taken { i.jt } else { i.jf });
            match i.code {
                LOAD => {
                    a = match i.k {
                        OFFSET_NR => nr,
                        OFFSET_ARCH => arch,
                        k => arguments[((k - 16) / 8) as usize] as u32,
                    };
                }
                JEQ => pc += jump(a == i.k),
                JGT => pc += jump(a > i.k),
                JSET => pc += jump(a & i.k != 0),
                RETURN => return i.k,
                other => panic!("unknown instruction {other}"),
            }
        }
    }

    #[test]
    fn ordinary_calls_pass() {
        for nr in [
            libc::SYS_read,
            libc::SYS_execve,
            libc::SYS_clone,
            libc::SYS_ioctl,
        ] {
            assert_eq!(verdict(ARCH, nr as u32, [0x11, 0x5401]), ALLOW, "{nr}");
        }
    }

    #[test]
    fn dangerous_calls_fail() {
        for nr in REFUSED {
            assert_eq!(
                verdict(ARCH, *nr as u32, [0, 0]),
                refuse(libc::EPERM),
                "{nr}"
            );
        }
        let user_namespace = [0x1000_0000 | 17, 0];
        assert_eq!(
            verdict(ARCH, libc::SYS_clone as u32, user_namespace),
            refuse(libc::EPERM)
        );
        for request in REFUSED_IOCTLS {
            let arguments = [3, u64::from(*request)];
            assert_eq!(
                verdict(ARCH, libc::SYS_ioctl as u32, arguments),
                refuse(libc::EPERM)
            );
        }
    }

    #[test]
    fn only_ordinary_sockets_exist() {
        let socket =
            |family: libc::c_int| verdict(ARCH, libc::SYS_socket as u32, [family as u64, 1]);
        for family in FAMILIES {
            assert_eq!(socket(*family), ALLOW);
        }
        for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET, libc::AF_RDS] {
            assert_eq!(socket(family), refuse(libc::EAFNOSUPPORT));
        }
    }

    #[test]
    fn unknown_calls_do_not_exist_and_other_machines_die() {
        assert_eq!(verdict(ARCH, 469, [0, 0]), refuse(libc::ENOSYS));
        assert_eq!(verdict(ARCH, 0x4000_0000, [0, 0]), refuse(libc::ENOSYS));
        assert_eq!(
            verdict(ARCH, libc::SYS_clone3 as u32, [0, 0]),
            refuse(libc::ENOSYS)
        );
        assert_eq!(verdict(0x4000_0003, 1, [0, 0]), KILL);
    }
}
