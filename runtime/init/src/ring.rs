//! The newest bytes of an output stream, in a file that outlives init and agent alike.
//!
//! Layout: a page with magic, capacity and the total ever written (u64, little endian), then the
//! ring. A reader takes the total first and the bytes after it, and checks the total again.
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes before the ring.
pub const HEADER: usize = 4096;
const MAGIC: &[u8; 8] = b"DSECRNG1";

/// A ring mapped from a file that the agent made and sized.
pub struct Ring {
    base: *mut u8,
    capacity: usize,
    total: u64,
}

impl Ring {
    /// Map the file behind `fd`. Its size gives the capacity.
    pub fn map(fd: RawFd) -> io::Result<Ring> {
        // SAFETY: fd is ours; the mapping is checked before use and lives as long as the process.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &mut stat) != 0 {
                return Err(io::Error::last_os_error());
            }
            let size = stat.st_size as usize;
            if size <= HEADER {
                return Err(io::Error::other("log file is smaller than its header"));
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(
                std::ptr::null_mut(),
                size,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            );
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let base = base.cast::<u8>();
            std::ptr::copy_nonoverlapping(MAGIC.as_ptr(), base, 8);
            let capacity = size - HEADER;
            base.add(8).cast::<u64>().write((capacity as u64).to_le());
            let ring = Ring {
                base,
                capacity,
                total: 0,
            };
            ring.publish();
            Ok(ring)
        }
    }

    /// Bytes ever written.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Keep these bytes; the oldest ones give way.
    pub fn write(&mut self, data: &[u8]) {
        self.total += data.len() as u64;
        let kept = &data[data.len().saturating_sub(self.capacity)..];
        let start = ((self.total - kept.len() as u64) % self.capacity as u64) as usize;
        let first = kept.len().min(self.capacity - start);
        // SAFETY: start + first <= capacity, and the rest is shorter than the capacity.
        unsafe {
            let ring = self.base.add(HEADER);
            std::ptr::copy_nonoverlapping(kept.as_ptr(), ring.add(start), first);
            std::ptr::copy_nonoverlapping(kept.as_ptr().add(first), ring, kept.len() - first);
        }
        self.publish();
    }

    fn publish(&self) {
        // SAFETY: offset 16 is inside the header page and aligned for a u64.
        let cell = unsafe { AtomicU64::from_ptr(self.base.add(16).cast()) };
        cell.store(self.total.to_le(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn ring(capacity: usize) -> (std::fs::File, Ring) {
        let path = std::env::temp_dir().join(format!(
            "dsec-ring-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.set_len((HEADER + capacity) as u64).unwrap();
        std::fs::remove_file(path).unwrap();
        let ring = Ring::map(file.as_raw_fd()).unwrap();
        (file, ring)
    }

    fn content(file: &std::fs::File, capacity: usize) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; capacity];
        file.read_exact_at(&mut bytes, HEADER as u64).unwrap();
        bytes
    }

    #[test]
    fn newest_bytes_stay_and_total_counts_all() {
        let (file, mut ring) = ring(8);
        ring.write(b"abcdef");
        ring.write(b"ghij");
        assert_eq!(ring.total(), 10);
        assert_eq!(content(&file, 8), b"ijcdefgh");
        ring.write(b"0123456789ABCDEF!!");
        assert_eq!(ring.total(), 28);
        // position of total % 8 = 4 is the oldest byte
        let ring_bytes = content(&file, 8);
        assert_eq!(
            [&ring_bytes[4..], &ring_bytes[..4]].concat(),
            b"ABCDEF!!"[..].to_vec()
        );
    }
}
