use proptest::prelude::{ProptestConfig, prop_assert, proptest};

use super::*;

const fn size(width: u32, height: u32, num_channels: u32) -> Size {
    Size {
        width,
        height,
        num_channels,
    }
}

/// Returns pixels that are all different, as far as bytes can be.
fn ramp(size: Size) -> Vec<u8> {
    (0..size.num_bytes())
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn resized_crop_is_inside_the_image(width in 1_u32..2_000, height in 1_u32..2_000, sample: u64) {
        let part = resized_crop(size(width, height, 3), &mut Random::new(0, 0, sample));
        prop_assert!(part.width >= 1 && part.left + part.width <= width);
        prop_assert!(part.height >= 1 && part.top + part.height <= height);
    }

    #[test]
    fn rand_augment_accepts_images_of_any_size(width in 1_u32..20, height in 1_u32..20, gray: bool, sample: u64) {
        let size = size(width, height, if gray { 1 } else { 3 });
        let mut pixels = ramp(size);
        rand_augment(&mut pixels, size, &mut Random::new(0, 0, sample), &mut Vec::new());
        prop_assert!(pixels.len() == size.num_bytes());
    }
}

#[test]
fn resized_crops_have_the_mean_area_of_torchvision() {
    // Areas are uniform from 8 % to 100 %, without those that do not fit. torchvision's own mean
    // over 20,000 draws of a 400x300 image is 0.435.
    let size = size(400, 300, 3);
    let areas: f64 = (0..20_000)
        .map(|sample| resized_crop(size, &mut Random::new(1, 0, sample)))
        .map(|part| f64::from(part.width * part.height) / 120_000.0)
        .sum();
    let mean = areas / 20_000.0;
    assert!((mean - 0.435).abs() < 0.01, "{mean}");
}

#[test]
fn flipping_twice_is_the_identity() {
    for size in [size(5, 3, 3), size(4, 2, 1)] {
        let mut pixels = ramp(size);
        flip(&mut pixels, size);
        assert_ne!(pixels, ramp(size));
        assert_eq!(pixels[..size.num_channels as usize], {
            let end = (size.width * size.num_channels) as usize;
            ramp(size)[end - size.num_channels as usize..end].to_vec()
        });
        flip(&mut pixels, size);
        assert_eq!(pixels, ramp(size));
    }
}

#[test]
fn padded_crop_shifts_by_at_most_the_padding() {
    let size = size(16, 16, 1);
    let mut moves = std::collections::BTreeSet::new();
    for sample in 0..500 {
        let from = vec![1; size.num_bytes()];
        let mut into = vec![9; size.num_bytes()];
        pad_and_crop(&from, size, &mut Random::new(0, 0, sample), &mut into);
        let num_kept: usize = into.iter().map(|value| usize::from(*value)).sum();
        let columns = into
            .chunks(16)
            .map(|row| row.iter().sum::<u8>())
            .max()
            .unwrap();
        assert!(columns >= 14 && num_kept >= 14 * 14, "{columns} {num_kept}");
        moves.insert(into);
    }
    assert_eq!(moves.len(), 25, "5 shifts in each direction");
}

#[test]
fn null_warp_is_identity_and_quarter_turn_has_order_4() {
    let size = size(7, 7, 3);
    let mut once = vec![0; size.num_bytes()];
    Warp::rotation(0.0).apply(&ramp(size), size, &mut once);
    assert_eq!(once, ramp(size));
    let mut pixels = ramp(size);
    for turn in 1..=4 {
        let from = pixels.clone();
        Warp::rotation(std::f64::consts::FRAC_PI_2).apply(&from, size, &mut pixels);
        assert_eq!(pixels == ramp(size), turn == 4);
    }
}

#[test]
fn translation_moves_pixels_and_fills_with_zeros() {
    let mut moved = vec![9; 3];
    Warp::translation(1.0, 0.0).apply(&[1, 2, 3], size(3, 1, 1), &mut moved);
    assert_eq!(moved, [0, 1, 2]);
}

#[test]
fn colors_are_those_of_pillow() {
    // Computed with Pillow's ImageEnhance and ImageOps on these two pixels.
    let cases = [
        (Color::Brightness(1.27), [12, 254, 127, 255, 38, 3]),
        (Color::Posterize { num_bits: 7 }, [10, 200, 100, 250, 30, 2]),
        (Color::Solarize { threshold: 179 }, [10, 55, 100, 5, 30, 3]),
        (Color::AutoContrast, [0, 255, 255, 255, 0, 0]),
        (Color::Saturation(0.73), [42, 181, 108, 207, 47, 27]),
        (Color::Contrast(0.0), [113; 6]),
    ];
    for (color, expected) in cases {
        let mut pixels = [10, 200, 100, 250, 30, 3];
        color.apply(&mut pixels, size(2, 1, 3));
        assert_eq!(pixels, expected, "{color:?}");
    }
}
