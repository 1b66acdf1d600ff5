//! Appends whole lines, and knows what to do where a write breaks off.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::JsonlOutput;

/// An output that is open.
pub(super) struct Appender {
    out: Box<dyn Write + Send>,
    /// The file behind it, if it is one that others may append to.
    file: Option<File>,
    /// Whether the output ends in the midst of a line.
    torn: bool,
}

impl Appender {
    /// Opens an output; a file that is not there is created.
    pub(super) fn open(output: &JsonlOutput) -> io::Result<Self> {
        match output {
            JsonlOutput::Stdout => {
                Ok(Self { out: Box::new(io::stdout()), file: None, torn: false })
            }
            JsonlOutput::File(path) => {
                let file = OpenOptions::new().append(true).create(true).open(path)?;
                // Of what is no plain file (a pipe), the end cannot be read.
                let is_file = file.metadata()?.is_file();
                let torn = is_file && nobody_writes(&file) && ends_torn(path);
                // The end has been looked at.
                let _ = file.unlock();
                let marked = if is_file { file.try_clone().ok() } else { None };
                Ok(Self { out: Box::new(file), file: marked, torn })
            }
        }
    }

    /// Appends lines, of which the last one ends too, and hands them to the operating system. Says how
    /// many of them went out whole, and what stopped the rest.
    pub(super) fn append(&mut self, lines: &[u8]) -> (usize, io::Result<()>) {
        // Writers do not exclude each other: the lock tells who opens the file that one is at work, and
        // ends with its process. Where there are no locks, nothing is told.
        let _ = self.file.as_ref().map(File::lock_shared);
        let appended = self.append_marked(lines);
        let _ = self.file.as_ref().map(File::unlock);
        appended
    }

    fn append_marked(&mut self, lines: &[u8]) -> (usize, io::Result<()>) {
        if self.torn {
            // What is written now must not be taken for the rest of the torn line.
            if let Err(error) = self.out.write_all(b"\n") {
                return (0, Err(error));
            }
            self.torn = false;
        }
        let (bytes, result) = write_counted(&mut self.out, lines);
        let (written, rest) = lines.split_at(bytes);
        self.torn = written.last().is_some_and(|byte| *byte != b'\n');
        // A line that lacks nothing but its end gets that with the next one.
        let all_but_its_end = usize::from(rest.first() == Some(&b'\n'));
        let ends = written.iter().filter(|byte| **byte == b'\n').count();
        (ends + all_but_its_end, result)
    }
}

/// As `write_all` and a flush, but says how many bytes went out before an error.
fn write_counted(out: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match out.write(&bytes[written..]) {
            Ok(0) => return (written, Err(ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, out.flush())
}

/// Whether no other process or handle is appending right now, whose half-written line would look torn;
/// until the file is unlocked, none begins to.
fn nobody_writes(file: &File) -> bool {
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Whether a file ends in the midst of a line: whoever wrote it was cut off. One that may not be read
/// counts as whole.
fn ends_torn(path: &Path) -> bool {
    let last = || -> io::Result<u8> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        Ok(byte[0])
    };
    last().is_ok_and(|byte| byte != b'\n')
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const LINES: &[u8] = b"one\ntwo\nthree\n";

    /// An output that takes at most `piece` bytes at a time, and fails once when it holds `room`.
    struct Narrow {
        taken: Arc<Mutex<Vec<u8>>>,
        piece: usize,
        room: Option<usize>,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut taken = self.taken.lock().unwrap();
            let left = self.room.map_or(usize::MAX, |room| room - taken.len());
            if left == 0 {
                self.room = None;
                return Err(ErrorKind::StorageFull.into());
            }
            let count = bytes.len().min(self.piece).min(left);
            taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn narrow(piece: usize, room: Option<usize>) -> (Appender, Arc<Mutex<Vec<u8>>>) {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let out = Box::new(Narrow { taken: taken.clone(), piece, room });
        (Appender { out, file: None, torn: false }, taken)
    }

    #[test]
    fn a_write_that_takes_a_part_is_gone_on_with() {
        for piece in 1..LINES.len() {
            let (mut appender, taken) = narrow(piece, None);
            let (lines, result) = appender.append(LINES);
            assert!(lines == 3 && result.is_ok(), "{lines} {result:?}");
            assert_eq!(*taken.lock().unwrap(), LINES);
        }
    }

    #[test]
    fn wherever_a_write_breaks_off_no_line_is_lost_or_joined_to_a_torn_one() {
        for room in 0..LINES.len() {
            let (mut appender, taken) = narrow(usize::MAX, Some(room));
            let (whole, result) = appender.append(LINES);
            assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
            let done = LINES.split_inclusive(|byte| *byte == b'\n').take(whole);
            let (_, rest) = LINES.split_at(done.map(<[u8]>::len).sum());
            let (_, result) = appender.append(rest);
            assert!(result.is_ok());
            let text = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
            let lines = text.lines().filter(|line| ["one", "two", "three"].contains(line));
            assert_eq!(lines.collect::<Vec<_>>(), ["one", "two", "three"], "{room}: {text:?}");
        }
    }
}
