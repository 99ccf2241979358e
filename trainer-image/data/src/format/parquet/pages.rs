//! The pages of a column, within limits. A page of a few bytes can declare two billion values, for
//! which a rank has no memory.

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;

/// Maximum contents of a column of a row group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) values: u64,
    /// Bytes of the pages, decompressed.
    pub(super) bytes: u64,
}

/// 2 GiB, because each read of a larger row group would need that much memory.
const MAX_BYTES: u64 = 2 << 30;

/// Limits of columns with one value per row.
pub(super) const ROWS: Bounds = Bounds {
    values: 4 << 20,
    bytes: MAX_BYTES,
};

/// Limits of columns of token lists; the values are the tokens of all lists.
pub(super) const TOKENS: Bounds = Bounds {
    values: 128 << 20,
    bytes: MAX_BYTES,
};

/// A row group exceeds the limits of one read.
#[derive(Debug, thiserror::Error)]
#[error(
    "a row group holds more than {0} in one column: write the file with smaller row groups, such as row_group_size=1000 in pyarrow"
)]
pub(super) struct TooLarge(String);

impl TooLarge {
    /// Error for a column with too many bytes.
    pub(super) fn bytes(most: u64) -> ParquetError {
        ParquetError::External(Box::new(Self(format!("{} MiB", most >> 20))))
    }
}

/// Pages of a column until the limits are exceeded.
pub(super) struct Pages {
    column: Box<dyn PageReader>,
    bounds: Bounds,
    num_values: u64,
    num_bytes: u64,
}

impl Pages {
    pub(super) fn within(bounds: Bounds, column: Box<dyn PageReader>) -> Self {
        Self {
            column,
            bounds,
            num_values: 0,
            num_bytes: 0,
        }
    }

    fn check(&mut self, page: &Page) -> Result<(), ParquetError> {
        let num_values = u64::from(page.num_values());
        // The values of a dictionary are not rows but need memory like rows.
        let is_dictionary = matches!(page, Page::DictionaryPage { .. });
        if !is_dictionary {
            self.num_values += num_values;
        }
        self.num_bytes += page.buffer().len() as u64;
        if self.num_values.max(num_values) > self.bounds.values {
            let words = format!("{} values", self.bounds.values);
            return Err(ParquetError::External(Box::new(TooLarge(words))));
        }
        if self.num_bytes > self.bounds.bytes {
            return Err(TooLarge::bytes(self.bounds.bytes));
        }
        Ok(())
    }
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.column.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.column.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.column.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.column.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use parquet::basic::Encoding;

    use super::*;

    struct Few(Vec<Page>);

    impl Iterator for Few {
        type Item = Result<Page, ParquetError>;

        fn next(&mut self) -> Option<Self::Item> {
            self.0.pop().map(Ok)
        }
    }

    impl PageReader for Few {
        fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
            Ok(self.0.pop())
        }

        fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
            Ok(None)
        }

        fn skip_next_page(&mut self) -> Result<(), ParquetError> {
            Ok(())
        }
    }

    fn data(num_values: u32, num_bytes: usize) -> Page {
        Page::DataPage {
            buf: vec![0; num_bytes].into(),
            num_values,
            encoding: Encoding::PLAIN,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        }
    }

    fn dictionary(num_values: u32) -> Page {
        Page::DictionaryPage {
            buf: Vec::new().into(),
            num_values,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        }
    }

    #[test]
    fn pages_are_read_up_to_the_limits() {
        let bounds = Bounds {
            values: 10,
            bytes: 2 << 20,
        };
        for (pages, expected) in [
            (vec![data(5, 1 << 20), data(5, 1 << 20)], None),
            (vec![dictionary(10), data(10, 0)], None),
            (vec![data(5, 0), data(6, 0)], Some("10 values")),
            (vec![dictionary(11)], Some("10 values")),
            (
                vec![data(1, 1 << 20), data(1, (1 << 20) + 1)],
                Some("2 MiB"),
            ),
        ] {
            let pages = Pages::within(bounds, Box::new(Few(pages)));
            let words = pages.collect::<Result<Vec<_>, _>>().err();
            let words = words.map(|error| error.to_string());
            match expected {
                None => assert_eq!(words, None),
                Some(part) => assert!(words.unwrap().contains(part), "{part}"),
            }
        }
    }
}
