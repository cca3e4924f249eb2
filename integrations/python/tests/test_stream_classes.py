"""Whose stream a rank of another world takes: the decision alone, of digests and places."""

import hashlib
import itertools
import random

import pytest

import unreft
from unreft.torch.mesh_place import ALONE, Place
from unreft.torch.stream_classes import How, take

NONE_STORED = "rank 0 stored no place in a device mesh"


def mesh(**sizes):
    """The places of all ranks, in row-major order."""
    return [
        Place(tuple(sizes), tuple(sizes.values()), at)
        for at in itertools.product(*map(range, sizes.values()))
    ]


def streams_of(places, *names):
    """That are apart along these dimensions."""
    return [repr([place.index(name) for name in names]).encode() for place in places]


def taken(digests, places, of_now, noted=None):
    """What each rank takes: the number of a rank, or the name of a new stream."""
    found = [take("torch", digests, places, noted or {}, *now) for now in enumerate(of_now)]
    assert len({each.how for each in found}) == len({each.said for each in found}) == 1
    assert len({repr(each.apart) for each in found}) == 1
    return [each.name if each.source is None else each.source for each in found], found[0]


def refused(match, digests, places, of_now, noted=None):
    for now in enumerate(of_now):
        with pytest.raises(unreft.FailedPrecondition, match=match):
            take("torch", digests, places, noted or {}, *now)


DP_TP = mesh(dp=2, tp=2)
BY_DP = streams_of(DP_TP, "dp")


def test_peers_go_on_sharing():
    for tp in (1, 2, 4):
        sources, first = taken(BY_DP, DP_TP, mesh(dp=2, tp=tp))
        assert sources == [0] * tp + [2] * tp
        assert first.how == How.BY_MESH and first.apart == {"dp": True, "tp": False}
        assert first.said == "alike along 'tp', by the index along 'dp'"


def test_fewer_sets_take_the_first_and_more_begin_anew():
    assert taken(BY_DP, DP_TP, mesh(dp=1, tp=2))[0] == [0, 0]
    sources, first = taken(BY_DP, DP_TP, mesh(dp=4, tp=2))
    assert sources == [0, 0, 2, 2, "dp 2", "dp 2", "dp 3", "dp 3"]
    assert first.said.endswith("by the index along 'dp', begun anew at 'dp 2', 'dp 3'")


def test_other_orders_of_ranks_and_dimensions():
    places = [DP_TP[rank] for rank in (3, 0, 2, 1)]
    sources, _ = taken(streams_of(places, "dp"), places, mesh(tp=2, dp=3))
    assert sources == [1, 0, "dp 2", 1, 0, "dp 2"]


def test_a_dimension_that_the_mesh_lacks_has_one_rank():
    assert taken(BY_DP, DP_TP, mesh(tp=3))[0] == [0, 0, 0]
    assert taken(BY_DP, DP_TP, mesh(dp=3))[0] == [0, 2, "dp 2"]
    assert taken(BY_DP, DP_TP, [ALONE])[0] == [0]


def test_apart_along_several_dimensions():
    places = mesh(dp=2, cp=2, tp=2)
    sources, first = taken(streams_of(places, "dp", "cp"), places, mesh(dp=1, cp=3, tp=2))
    assert sources == [0, 0, 2, 2, "cp 2, dp 0", "cp 2, dp 0"]
    assert first.apart == {"dp": True, "cp": True, "tp": False}


def test_one_stream_and_one_of_each_rank_need_no_mesh():
    for places, of_now in ((NONE_STORED, [None] * 3), (DP_TP, mesh(other=3))):
        sources, first = taken([b"a"] * 4, places, of_now)
        assert (sources, first.how) == ([0, 0, 0], How.SHARED)
        sources, first = taken([b"a", b"b", b"c", b"d"], places, of_now)
        assert (sources, first.how) == ([0, 1, 2], How.BY_RANK)


# --- a dimension of one rank says nothing, and what was known of it is noted ---


def test_from_one_set_to_several_they_are_apart_as_ever():
    noted = taken(BY_DP, DP_TP, mesh(dp=1, tp=2))[1].apart
    sources, first = taken([b"a", b"a"], mesh(dp=1, tp=2), mesh(dp=3, tp=2), noted)
    assert sources == [0, 0, "dp 1", "dp 1", "dp 2", "dp 2"]
    assert first.said == "alike along 'tp', by the index along 'dp', begun anew at 'dp 1', 'dp 2'"
    assert taken([b"a"], [ALONE], mesh(dp=2), noted)[0] == [0, "dp 1"]
    # Without a note nothing is known but that all share one.
    assert taken([b"a", b"a"], mesh(dp=1, tp=2), mesh(dp=3, tp=2))[0] == [0] * 6
    assert taken([b"a"], [ALONE], [None] * 2, noted)[0] == [0, 0]


def test_from_peers_that_were_one_rank_to_several_they_are_alike_as_ever():
    noted = taken(BY_DP, DP_TP, mesh(dp=3, tp=1))[1].apart
    sources, _ = taken([b"a", b"b", b"c"], mesh(dp=3, tp=1), mesh(dp=2, tp=2), noted)
    assert sources == [0, 0, 1, 1]
    sources, first = taken([b"a", b"b", b"c"], mesh(dp=3), mesh(dp=2), noted)
    assert (sources, first.how, first.apart) == ([0, 1], How.BY_RANK, noted)


def test_what_is_stored_weighs_more_than_what_was_noted():
    wrong = {"dp": False, "tp": True}
    assert taken(BY_DP, DP_TP, mesh(dp=2, tp=3), wrong)[0] == [0, 0, 0, 2, 2, 2]


# --- refusals ---


def test_ranks_without_a_place_are_refused():
    why = (
        r"streams of 'torch' are alike on rank 0, 1, but not on all 4 .* as tensor-parallel peers "
        r"do, and rank 0 stored no place .*: have a snapshot taken with attach\(mesh=...\). Restart"
        r" with 4 ranks, or pass attach\(rng=False\)"
    )
    refused(why, BY_DP, NONE_STORED, mesh(dp=3, tp=2))
    why = r"a mesh of dp 2, tp 2 stored them, and this rank has no place .*attach\(mesh=...\) one w"
    refused(why, BY_DP, DP_TP, [None] * 3)


@pytest.mark.parametrize("digests", ["aaab", "abba", "abac", "aabc", "abbb"])
def test_classes_that_are_not_those_of_coordinates_are_refused(digests):
    why = "not alike along dimensions of the mesh of dp 2, tp 2 that stored them. Restart with 4"
    refused(why, [letter.encode() for letter in digests], DP_TP, mesh(dp=1, tp=2))


def test_dimensions_that_do_not_correspond_are_refused():
    why = "mesh of now, data 3, tp 2, it is not known whether they are alike along 'data': one of d"
    refused(why, BY_DP, DP_TP, mesh(data=3, tp=2))
    places = mesh(dp=2, cp=1, tp=2)
    refused("alike along 'cp'", streams_of(places, "dp"), places, mesh(dp=2, cp=2, tp=2))


def test_what_was_noted_is_not_given_up_in_silence():
    noted = {"dp": True, "tp": False}
    alike = "are alike along 'tp', where one rank stored them: by rank number streams would be spli"
    refused(f"{alike}.*has no place", [b"a", b"b", b"c"], mesh(dp=3), [None] * 4, noted)
    refused(f"{alike}.*rank 0 stored no", [b"a", b"b"], NONE_STORED, mesh(dp=1, tp=3), noted)
    apart = "are apart along 'dp', where one rank stored them, and "
    refused(f"{apart}rank 0 stored no place", [b"a", b"a"], NONE_STORED, mesh(dp=3), noted)
    refused(f"{apart}.*along 'cp'", [b"a"] * 2, mesh(tp=2), mesh(dp=3, cp=2), noted)


# --- any meshes ---


def begun(name, digests):
    return hashlib.blake2b(b"".join([name.encode(), *digests]), digest_size=8).digest()


@pytest.mark.parametrize("seed", range(200))
def test_whoever_was_alike_stays_alike_through_worlds_of_all_sizes(seed):
    """Once each dimension has had several ranks, what is alike and what is apart stays so."""
    draw = random.Random(seed)
    names = draw.sample(["dp", "tp", "cp", "pp"], draw.randint(1, 3))
    apart = [name for name in names if draw.random() < 0.5]

    def new_mesh(least):
        order = draw.sample(names, len(names))
        places = mesh(**{name: draw.randint(least, 3) for name in order})
        return draw.sample(places, len(places))

    places, noted = new_mesh(2), {}
    digests = streams_of(places, *apart)
    for _ in range(5):
        of_now = new_mesh(1)
        found = [take("torch", digests, places, noted, *now) for now in enumerate(of_now)]
        for place, each in zip(of_now, found):
            if each.how == How.BY_MESH and each.source is not None:
                stored = places[each.source]
                assert [place.index(n) for n in apart] == [stored.index(n) for n in apart]
            if each.source is None and each.how == How.BY_MESH:
                assert any(place.index(name) >= places[0].size(name) for name in apart)
        noted = found[0].apart
        assert noted == {name: name in apart for name in names}
        digests = [
            begun(each.name, digests) if each.source is None else digests[each.source]
            for each in found
        ]
        places = of_now
        for a, b in itertools.combinations(range(len(places)), 2):
            same = all(places[a].index(name) == places[b].index(name) for name in apart)
            assert (digests[a] == digests[b]) == same


@pytest.mark.parametrize("seed", range(200))
def test_any_classes_are_those_of_coordinates_or_refused(seed):
    draw = random.Random(seed)
    places = mesh(**{name: draw.randint(1, 3) for name in ("dp", "tp", "cp")})
    digests = [bytes([draw.randrange(3)]) for _ in places]
    of_now = mesh(**{name: draw.randint(1, 3) for name in ("dp", "tp", "cp")})
    try:
        found = [take("torch", digests, places, {}, *now) for now in enumerate(of_now)]
    except unreft.FailedPrecondition:
        return
    if found[0].how != How.BY_MESH:
        assert len(set(digests)) in (1, len(digests))
        return
    names = [name for name in found[0].apart if found[0].apart[name]]
    keys = [tuple(map(place.index, names)) for place in places]
    assert len(set(zip(keys, digests))) == len(set(keys)) == len(set(digests))
