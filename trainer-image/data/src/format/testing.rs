//! Small files of the formats, for tests.
#![expect(clippy::unwrap_used, reason = "they are written to memory")]

/// Returns a JPEG image whose pixels depend on a number.
#[must_use]
pub fn jpeg(width: u16, height: u16, number: u8) -> Vec<u8> {
    let pixels: Vec<u8> = (0..u32::from(width) * u32::from(height) * 3)
        .map(|at| u8::try_from(at * u32::from(number) / 16 % 256).unwrap())
        .collect();
    let mut bytes = Vec::new();
    jpeg_encoder::Encoder::new(&mut bytes, 90)
        .encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    bytes
}

/// Returns a PNG image of one color.
#[must_use]
pub fn png(width: u32, height: u32, color: png::ColorType, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    encoder
        .write_header()
        .unwrap()
        .write_image_data(pixels)
        .unwrap();
    bytes
}

/// Returns a tar file with these names and contents.
#[must_use]
pub fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Encodes a bytes field of a protobuf message.
fn field(number: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    bytes.extend(varint(data.len() as u64));
    bytes.extend(data);
    bytes
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

/// Returns a `tf.train.Example` with an image and a label.
#[must_use]
pub fn example(image: &[u8], label: u64, is_packed: bool) -> Vec<u8> {
    let label = if is_packed {
        field(1, &varint(label))
    } else {
        [vec![1 << 3], varint(label)].concat()
    };
    let entry = |key: &[u8], feature: &[u8]| field(1, &[field(1, key), field(2, feature)].concat());
    let features = [
        entry(b"image/format", &field(1, &field(1, b"jpeg"))),
        entry(b"image/encoded", &field(1, &field(1, image))),
        entry(b"image/class/label", &field(3, &label)),
    ];
    field(1, &features.concat())
}

/// Writes a Parquet file with a column `input_ids` of token lists. Each inner slice is a row group.
#[cfg(feature = "parquet")]
#[must_use]
pub fn token_lists(groups: &[&[&[i32]]]) -> Vec<u8> {
    use ::parquet::data_type::Int32Type;
    use ::parquet::file::writer::SerializedFileWriter;

    let schema = "message m { required group input_ids (LIST) { repeated group list { required int32 element; } } }";
    let schema =
        std::sync::Arc::new(::parquet::schema::parser::parse_message_type(schema).unwrap());
    let mut bytes = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut bytes, schema, std::sync::Arc::default()).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
        for row in *rows {
            values.extend_from_slice(row);
            definitions.extend(std::iter::repeat_n(
                i16::from(!row.is_empty()),
                row.len().max(1),
            ));
            repetitions.extend((0..row.len().max(1)).map(|at| i16::from(at > 0)));
        }
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<Int32Type>();
        typed
            .write_batch(&values, Some(&definitions), Some(&repetitions))
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}
