//! Decodes JPEG and PNG to 8-bit red, green and blue. The content decides the kind of image, not
//! the file's name.

use std::io::Cursor;

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::Size;

/// Maximum width and height. A header with a larger image is hostile.
const MAX_EDGE: usize = 16_384;
/// Maximum number of pixels of an image.
const MAX_PIXELS: usize = 100_000_000;
/// Maximum number of pixels that one byte of a JPEG can represent. A block of 64 values takes at
/// least one bit, and with the coarsest sampling it represents 4 × 4 times as many pixels (ITU-T
/// T.81, A.1.1 and F.1.2).
const JPEG_PIXELS_PER_BYTE: usize = 8 * 16 * 64;
/// Maximum number of pixels that one byte of a PNG can represent: a byte has eight pixels before
/// compression, and deflate expands a byte to at most 1,032 bytes.
const PNG_PIXELS_PER_BYTE: usize = 8 * 1_032;

/// Decodes an image into a buffer, `[H, W, 3]`.
///
/// # Errors
/// Returns a description of what is wrong with the bytes.
pub fn decode(bytes: &[u8], into: &mut Vec<u8>) -> Result<Size, String> {
    decode_at_most(MAX_PIXELS, bytes, into)
}

/// Like [`decode`], but refuses an image whose header has more pixels than `max_pixels`.
///
/// # Errors
/// Returns the errors of [`decode`].
pub fn decode_at_most(max_pixels: usize, bytes: &[u8], into: &mut Vec<u8>) -> Result<Size, String> {
    match bytes {
        [0xff, 0xd8, ..] => jpeg(max_pixels, bytes, into),
        [0x89, b'P', b'N', b'G', ..] => png(max_pixels, bytes, into),
        [] => Err("the image is empty".to_owned()),
        _ => Err("the image is neither JPEG nor PNG".to_owned()),
    }
}

fn jpeg(max_pixels: usize, bytes: &[u8], into: &mut Vec<u8>) -> Result<Size, String> {
    // The decoder fills the missing part of a truncated image with gray, so check for the end
    // marker. Bytes after the marker are common and harmless, and the marker of an embedded
    // thumbnail is near the beginning.
    let second_half = &bytes[bytes.len() / 2..];
    if !second_half
        .windows(2)
        .rev()
        .any(|pair| pair == [0xff, 0xd9])
    {
        return Err("the JPEG image is truncated: it has no end marker".to_owned());
    }
    let options = DecoderOptions::new_fast()
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .set_max_width(MAX_EDGE)
        .set_max_height(MAX_EDGE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let refuse =
        |error: zune_jpeg::errors::DecodeErrors| format!("the JPEG image is corrupt: {error}");
    decoder.decode_headers().map_err(refuse)?;
    let size = decoder.info().map(|info| (info.width, info.height));
    let (width, height) = size.ok_or("the JPEG image has no header")?;
    let size = checked(max_pixels, usize::from(width), usize::from(height))?;
    can_hold(bytes, &size, JPEG_PIXELS_PER_BYTE)?;
    into.resize(size.num_bytes(), 0);
    decoder.decode_into(into).map_err(refuse)?;
    Ok(size)
}

fn png(max_pixels: usize, bytes: &[u8], into: &mut Vec<u8>) -> Result<Size, String> {
    let refuse = |error: png::DecodingError| format!("the PNG image is corrupt: {error}");
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    // Palettes, 1 to 4 bits and 16 bits become 8 bits.
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut image = decoder.read_info().map_err(refuse)?;
    let (width, height) = image.info().size();
    let size = checked(max_pixels, width as usize, height as usize)?;
    can_hold(bytes, &size, PNG_PIXELS_PER_BYTE)?;
    let (color, _) = image.output_color_type();
    let len = image
        .output_buffer_size()
        .ok_or("the PNG image is too large")?;
    into.resize(len, 0);
    image.next_frame(into).map_err(refuse)?;
    match color {
        png::ColorType::Rgb => {}
        png::ColorType::Rgba => keep(into, 4, |pixel| [pixel[0], pixel[1], pixel[2]]),
        png::ColorType::Grayscale => keep(into, 1, |pixel| [pixel[0]; 3]),
        png::ColorType::GrayscaleAlpha => keep(into, 2, |pixel| [pixel[0]; 3]),
        png::ColorType::Indexed => return Err("the PNG image has no palette".to_owned()),
    }
    into.truncate(size.num_bytes());
    Ok(size)
}

/// Replaces pixels with `num_channels` channels by pixels with three.
fn keep(pixels: &mut Vec<u8>, num_channels: usize, rgb: impl Fn(&[u8]) -> [u8; 3]) {
    *pixels = pixels.chunks_exact(num_channels).flat_map(rgb).collect();
}

fn checked(max_pixels: usize, width: usize, height: usize) -> Result<Size, String> {
    let is_sane = (1..=MAX_EDGE).contains(&width) && (1..=MAX_EDGE).contains(&height);
    if !is_sane || width * height > max_pixels {
        return Err(format!(
            "the image is {width}x{height}; at most {MAX_EDGE}x{MAX_EDGE} and {max_pixels} pixels can be read"
        ));
    }
    let small = |edge: usize| u32::try_from(edge).map_err(|_| "the image is too large".to_owned());
    Ok(Size {
        width: small(width)?,
        height: small(height)?,
        num_channels: 3,
    })
}

/// Checks the size in the header against the number of bytes. A decoder would spend memory and time
/// for the promised image before it notices that data is missing.
fn can_hold(bytes: &[u8], size: &Size, pixels_per_byte: usize) -> Result<(), String> {
    let Size { width, height, .. } = *size;
    if width as usize * height as usize <= bytes.len().saturating_mul(pixels_per_byte) {
        return Ok(());
    }
    let len = bytes.len();
    Err(format!(
        "the image is {width}x{height} by its header, which {len} bytes cannot hold: it is corrupt or truncated"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, proptest};

    use super::*;
    use crate::format::testing;

    #[test]
    fn jpeg_and_png_of_all_kinds_become_rgb() {
        let mut pixels = Vec::new();
        let size = decode(&testing::jpeg(40, 30, 7), &mut pixels).unwrap();
        assert_eq!((size.width, size.height, pixels.len()), (40, 30, 3_600));
        for (color, values, expected) in [
            (
                png::ColorType::Rgb,
                vec![1, 2, 3, 4, 5, 6],
                [1, 2, 3, 4, 5, 6],
            ),
            (
                png::ColorType::Rgba,
                vec![1, 2, 3, 0, 4, 5, 6, 9],
                [1, 2, 3, 4, 5, 6],
            ),
            (png::ColorType::Grayscale, vec![7, 8], [7, 7, 7, 8, 8, 8]),
            (
                png::ColorType::GrayscaleAlpha,
                vec![7, 0, 8, 1],
                [7, 7, 7, 8, 8, 8],
            ),
        ] {
            let bytes = testing::png(2, 1, color, &values);
            let size = decode(&bytes, &mut pixels).unwrap();
            assert_eq!((size.width, size.height), (2, 1));
            assert_eq!(pixels, expected, "{color:?}");
        }
    }

    #[test]
    fn truncated_image_is_an_error_and_never_gray() {
        for whole in [
            testing::jpeg(32, 32, 1),
            testing::png(2, 2, png::ColorType::Grayscale, &[1, 2, 3, 4]),
        ] {
            // The 12 bytes of a PNG's last chunk contain no pixels.
            for len in 0..whole.len() - 13 {
                assert!(decode(&whole[..len], &mut Vec::new()).is_err(), "{len}");
            }
        }
    }

    #[test]
    fn oversized_header_is_refused_before_allocation() {
        let mut bytes = testing::png(2, 1, png::ColorType::Grayscale, &[7, 8]);
        bytes[16..20].copy_from_slice(&100_000_u32.to_be_bytes());
        assert!(decode(&bytes, &mut Vec::new()).is_err());
        let mut bytes = testing::jpeg(32, 32, 1);
        let header = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]);
        let size = header.unwrap() + 5;
        bytes[size..size + 4].copy_from_slice(&[0x20, 0x88, 0x2c, 0x10]);
        let mut pixels = Vec::new();
        let refused = decode(&bytes, &mut pixels).unwrap_err();
        assert!(refused.contains("11280x8328 by its header"), "{refused}");
        assert_eq!(pixels.capacity(), 0);
    }

    #[test]
    fn small_image_of_one_color_is_read() {
        let (edge, mut pixels) = (2_048, Vec::new());
        let black = vec![0; edge * edge];
        let bytes = testing::png(2_048, 2_048, png::ColorType::Grayscale, &black);
        assert!(bytes.len() < edge * edge / 100, "{}", bytes.len());
        assert_eq!(decode(&bytes, &mut pixels).unwrap().height, 2_048);
        let bytes = testing::jpeg(2_048, 2_048, 0);
        assert_eq!(decode(&bytes, &mut pixels).unwrap().height, 2_048);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn flipped_bytes_never_panic(at in 2_usize..1_000, value: u8) {
            let mut bytes = testing::jpeg(32, 32, 1);
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = decode(&bytes, &mut Vec::new());
        }
    }
}
