//! A Parquet file in the form that its library reads. The file's metadata follows its last page, so
//! a header that points beyond the end of the file belongs to a damaged file. The library would
//! continue with empty reads, or allocate as much memory as the header says.

use std::fs::File;
use std::io::{self, BufReader, Read};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

/// A file that is never read beyond its end.
#[derive(Debug)]
pub(super) struct Source(pub(super) File);

impl Length for Source {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for Source {
    type T = Within<BufReader<File>>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        self.0.get_read(start).map(Within)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length as u64);
        if end.is_none_or(|end| end > self.len()) {
            return Err(ParquetError::EOF(
                "it refers to data beyond its end".to_owned(),
            ));
        }
        self.0.get_bytes(start, length)
    }
}

/// A reader that returns an error at the end.
pub(super) struct Within<R>(R);

impl<R: Read> Read for Within<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into)? {
            0 if !into.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            length => Ok(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn no_data_is_read_beyond_the_end_of_a_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let source = Source(file);
        assert_eq!(source.len(), 10);
        assert_eq!(source.get_bytes(4, 6).unwrap(), "456789");
        for (start, length) in [(4, 7), (11, 0), (0, usize::MAX), (u64::MAX, 1)] {
            assert!(source.get_bytes(start, length).is_err(), "{start} {length}");
        }
        let mut read = source.get_read(8).unwrap();
        let mut four = [0; 4];
        assert_eq!(read.read(&mut four).unwrap(), 2);
        assert_eq!(read.read(&mut []).unwrap(), 0);
        assert!(read.read(&mut four).is_err());
    }
}
