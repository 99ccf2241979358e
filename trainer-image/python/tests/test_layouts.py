"""The places of the processes of a replica in its mesh."""

from roundhouse.layout import Layout


def test_stages_have_parts_and_shards_have_samples():
    layout = Layout(["pp", "fsdp"], [2, 3], ["fsdp"])
    assert layout.parts == [[0, 1, 2], [3, 4, 5]] and layout.part_of == [0, 0, 0, 1, 1, 1]
    assert layout.data_indices == [0, 1, 2, 0, 1, 2] and layout.num_data == 3


def test_samples_are_numbered_over_all_their_dimensions():
    layout = Layout(["fsdp", "tp", "ep"], [2, 2, 2], ["fsdp", "ep"])
    assert layout.data_indices == [0, 1, 0, 1, 2, 3, 2, 3]
    assert layout.parts == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_last_stage_that_knows_a_value_counts():
    layout = Layout(["tp", "pp"], [2, 3], [])
    assert layout.sources(0, [1, 1, 1, 1, 1, 1]) == [2, 5]
    assert layout.sources(0, [1, 1, 0, 1, 1, 0]) == [1, 4]
    # As in a schedule whose last stage is in the first process.
    assert layout.sources(5, [1, 0, 0, 0, 0, 0]) == [0]


def test_samples_without_a_source_are_noticed_by_all():
    layout = Layout(["pp", "fsdp"], [2, 2], ["fsdp"])
    assert layout.sources(0, [0, 0, 1, 1]) == [2] and layout.sources(1, [0, 0, 1, 1]) == [3]
    assert layout.sources(0, [0, 0, 1, 0]) == [] == layout.sources(1, [0, 0, 1, 0])


def test_copies_are_compared_along_stages_and_sequences():
    assert Layout(["pp", "cp"], [2, 2], []).alike == [()] * 4
    assert len(set(Layout(["fsdp", "tp"], [2, 2], ["fsdp"]).alike)) == 4
    # A script may give each part of a sequence other samples.
    assert len(set(Layout(["cp"], [2], ["cp"]).alike)) == 2
