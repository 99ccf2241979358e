//! The part of `tf.train.Example` that an image needs, parsed from the protobuf encoding without
//! copying.
//!
//! `Example {1: Features {1: {1: key, 2: Feature {1: BytesList {1: bytes}, 3: Int64List {1:
//! varints}}}}}`

use std::ops::Range;

/// The place of the image in the bytes, and its label.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Example {
    pub(super) image: Option<Range<usize>>,
    pub(super) label: Option<i64>,
}

impl Example {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        Self::fields(bytes).ok_or_else(|| "the record is not a tf.train.Example".to_owned())
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        let mut example = Self::default();
        let mut all = Message::new(bytes, 0..bytes.len());
        while let Some(features) = all.next()? {
            let mut features = features.message(bytes, 1);
            while let Some(entry) = features.next()? {
                example.entry(bytes, entry.message(bytes, 1))?;
            }
        }
        Some(example)
    }

    fn entry(&mut self, bytes: &[u8], mut entry: Message<'_>) -> Option<()> {
        let (mut key, mut value) = (0..0, 0..0);
        while let Some(field) = entry.next()? {
            match field {
                Field::Bytes { number: 1, range } => key = range,
                Field::Bytes { number: 2, range } => value = range,
                Field::Bytes { .. } | Field::Number { .. } => {}
            }
        }
        let mut feature = Message::new(bytes, value);
        while let Some(list) = feature.next()? {
            match (bytes.get(key.clone())?, list) {
                (b"image/encoded", Field::Bytes { number: 1, range }) => {
                    if let Some(Field::Bytes { number: 1, range }) =
                        Message::new(bytes, range).next()?
                    {
                        self.image = Some(range);
                    }
                }
                (b"image/class/label", Field::Bytes { number: 3, range }) => {
                    self.label = first_number(bytes, range);
                }
                _ => {}
            }
        }
        Some(())
    }
}

/// Returns the first number of a list of varints, packed or not.
fn first_number(bytes: &[u8], range: Range<usize>) -> Option<i64> {
    let number = match Message::new(bytes, range).next()?? {
        Field::Bytes { number: 1, range } => Message::new(bytes, range).varint()?,
        Field::Number { number: 1, value } => value,
        Field::Bytes { .. } | Field::Number { .. } => return None,
    };
    Some(number.cast_signed())
}

enum Field {
    Bytes { number: u64, range: Range<usize> },
    Number { number: u64, value: u64 },
}

impl Field {
    fn message(self, bytes: &[u8], expected: u64) -> Message<'_> {
        match self {
            Self::Bytes { number, range } if number == expected => Message::new(bytes, range),
            // An unknown field is treated as an empty message.
            Self::Bytes { .. } | Self::Number { .. } => Message::new(bytes, 0..0),
        }
    }
}

/// A range of the bytes that is parsed as a message. `None` means that it is not a message.
struct Message<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Message<'a> {
    const fn new(bytes: &'a [u8], range: Range<usize>) -> Self {
        Self {
            bytes,
            at: range.start,
            end: range.end,
        }
    }

    #[expect(
        clippy::option_option,
        reason = "the outer None is an error, the inner one the end"
    )]
    fn next(&mut self) -> Option<Option<Field>> {
        if self.at >= self.end {
            return Some(None);
        }
        let tag = self.varint()?;
        let number = tag >> 3;
        let field = match tag & 7 {
            0 => Field::Number {
                number,
                value: self.varint()?,
            },
            1 => self.skip(8, number)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.skip(length, number)?
            }
            5 => self.skip(4, number)?,
            _ => return None,
        };
        Some(Some(field))
    }

    fn skip(&mut self, length: usize, number: u64) -> Option<Field> {
        let start = self.at;
        self.at = start.checked_add(length)?;
        (self.at <= self.end).then_some(Field::Bytes {
            number,
            range: start..self.at,
        })
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(..self.end)?.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}
