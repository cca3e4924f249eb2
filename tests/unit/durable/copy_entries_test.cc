#include "durable/copy_entries.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layout/capture_plan.h"
#include "layout/tensor_table.h"
#include "tests/unit/layout_testing.h"

namespace unreft::durable {
namespace {

using layout::Box;
using layout::CaptureMode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using namespace std::string_literals;

const KeyMap kNoMap;

CopiedSlab SlabOf(uint64_t rank, std::vector<TensorSpec> specs, std::string extras = "",
                  CaptureMode mode = CaptureMode::kSharded, uint64_t item_bytes_max = 1024) {
  auto table = layout::TensorTable::Create(std::move(specs));
  EXPECT_TRUE(table.ok()) << table.status();
  const auto captured = layout::CapturePlan::Make(*table, mode);
  CopiedSlab slab;
  slab.manifest.rank = Rank{rank};
  slab.manifest.capture_mode = mode;
  slab.manifest.tensors = {table->specs().begin(), table->specs().end()};
  slab.manifest.parts = {captured.parts().begin(), captured.parts().end()};
  auto plan = PlanCopy(slab.manifest, item_bytes_max);
  EXPECT_TRUE(plan.ok()) << plan.status();
  slab.plan = *std::move(plan);
  slab.file = fmt::format("rank{}.distcp", rank);
  slab.extras = std::move(extras);
  return slab;
}

std::vector<DcpEntry> EntriesOf(const std::vector<CopiedSlab>& slabs, const KeyMap& map = kNoMap) {
  auto entries = TensorEntries(slabs, map);
  EXPECT_TRUE(entries.ok()) << entries.status();
  return entries.ok() ? *std::move(entries) : std::vector<DcpEntry>();
}

std::vector<std::string> KeysOf(const std::vector<DcpEntry>& entries) {
  std::vector<std::string> keys;
  for (const DcpEntry& entry : entries) keys.push_back(entry.key);
  return keys;
}

void ExpectRefused(const std::vector<CopiedSlab>& slabs, absl::StatusCode code,
                   const std::vector<std::string>& parts, const KeyMap& map = kNoMap) {
  const absl::Status status = TensorEntries(slabs, map).status();
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

// --- tensors ---

TEST(TensorEntriesTest, ItemsOfAllRanksAreChunksWhereTheyLie) {
  const CopiedSlab first =
      SlabOf(0, {Whole("model/b", {3}), Spec("model/w", {4, 6}, {0, 3}, {4, 3})});
  const CopiedSlab second = SlabOf(1, {Spec("model/w", {4, 6}, {0, 0}, {4, 3})});
  const std::vector<DcpEntry> entries = EntriesOf({first, second});
  ASSERT_THAT(KeysOf(entries), ElementsAre("model.b", "model.w"));
  const DcpEntry& entry = entries[1];
  EXPECT_EQ(entry.path, (std::vector<PathElement>{"model", "w"}));
  EXPECT_TRUE(entry.is_tensor);
  EXPECT_EQ(entry.dtype, Dtype::kFloat32);
  EXPECT_EQ(entry.global_shape, (Dims{4, 6}));
  ASSERT_THAT(entry.chunks, SizeIs(2));
  EXPECT_EQ(entry.chunks[0].offset, (Dims{0, 0}));
  EXPECT_EQ(entry.chunks[0].file, "rank1.distcp");
  EXPECT_EQ(entry.chunks[0].at, 0u);
  EXPECT_EQ(entry.chunks[0].bytes, second.plan.items[0].archive_bytes);
  EXPECT_EQ(entry.chunks[1].offset, (Dims{0, 3}));
  EXPECT_EQ(entry.chunks[1].extent, (Dims{4, 3}));
  EXPECT_EQ(entry.chunks[1].file, "rank0.distcp");
  EXPECT_EQ(entry.chunks[1].at, first.plan.items[1].at);
  EXPECT_EQ(entry.chunks[1].bytes, first.plan.items[1].archive_bytes);
}

TEST(TensorEntriesTest, OfNoRanksThereAreNone) { EXPECT_THAT(EntriesOf({}), IsEmpty()); }

TEST(TensorEntriesTest, AScalarHasOneChunkWithoutDimensions) {
  const std::vector<DcpEntry> entries = EntriesOf(
      {SlabOf(0, {Whole("optim/w/step", {}, 0, 2)}), SlabOf(1, {Whole("optim/w/step", {}, 1, 2)})});
  ASSERT_THAT(KeysOf(entries), ElementsAre("optim.state.w.step"));
  ASSERT_THAT(entries[0].chunks, SizeIs(1)) << "one of the replicas captured it";
  EXPECT_THAT(entries[0].chunks[0].extent, IsEmpty());
}

TEST(TensorEntriesTest, ReplicasAreOneTensorInEitherMode) {
  for (const CaptureMode mode : {CaptureMode::kSharded, CaptureMode::kFull}) {
    std::vector<CopiedSlab> slabs;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      slabs.push_back(SlabOf(rank, {Whole("model/w", {50, 70}, rank, 3)}, "", mode));
    }
    const std::vector<DcpEntry> entries = EntriesOf(slabs);
    ASSERT_THAT(entries, SizeIs(1));
    std::map<Dims, int> times;
    for (const DcpChunk& chunk : entries[0].chunks) {
      ForEachElement(Box{chunk.offset, chunk.extent}, [&](const Dims& index) { ++times[index]; });
    }
    EXPECT_THAT(times, SizeIs(50 * 70));
    for (const auto& [index, count] : times) ASSERT_EQ(count, 1);
    if (mode == CaptureMode::kFull) {
      for (const DcpChunk& chunk : entries[0].chunks) EXPECT_EQ(chunk.file, "rank0.distcp");
    }
  }
}

TEST(TensorEntriesTest, APermutedTensorIsTheLogicalOne) {
  const std::vector<DcpEntry> entries =
      EntriesOf({SlabOf(0, {Spec("model/w[memory_order=1,0]", {3, 2}, {0, 0}, {1, 2})}),
                 SlabOf(1, {Spec("model/w[memory_order=1,0]", {3, 2}, {1, 0}, {2, 2})})});
  ASSERT_THAT(KeysOf(entries), ElementsAre("model.w"));
  EXPECT_EQ(entries[0].global_shape, (Dims{2, 3}));
  ASSERT_THAT(entries[0].chunks, SizeIs(2));
  EXPECT_EQ(entries[0].chunks[0].extent, (Dims{2, 1}));
  EXPECT_EQ(entries[0].chunks[1].offset, (Dims{0, 1}));
  EXPECT_EQ(entries[0].chunks[1].extent, (Dims{2, 2}));
}

TEST(TensorEntriesTest, WhatRanksHaveOfTheirOwnIsBesideTheFirstOnes) {
  // The first one's is found in whichever order the slabs are.
  const std::vector<DcpEntry> entries = EntriesOf(
      {SlabOf(1, {Whole("rank1/buffer/n", {2})}), SlabOf(0, {Whole("rank0/buffer/n", {3})})});
  ASSERT_THAT(KeysOf(entries), ElementsAre("model.n", "unreft.rank1.model.n"));
  EXPECT_EQ(entries[0].global_shape, (Dims{3}));
  EXPECT_EQ(entries[1].global_shape, (Dims{2}));
}

TEST(TensorEntriesTest, ElementsThatNoRankHasAreDataLossWithTheNumbers) {
  const TensorSpec half = Spec("model/w", {4, 6}, {0, 0}, {4, 3});
  ExpectRefused({SlabOf(0, {half})}, absl::StatusCode::kDataLoss,
                {"'model.w'", "each of its 24 elements once, found 12 in 1 items"});
  // Of a replica whose other one is not there half was captured, or nothing is copied.
  CopiedSlab slab = SlabOf(0, {Whole("model/w", {2048}, 0, 2)});
  ExpectRefused({slab}, absl::StatusCode::kDataLoss, {"'model.w'", "2048", "found 1024"});
  slab = SlabOf(1, {Whole("model/w", {2048}, 1, 2)}, "", CaptureMode::kFull);
  ExpectRefused({slab}, absl::StatusCode::kDataLoss, {"found 0 in 0 items"});
}

TEST(TensorEntriesTest, ElementsThatAreThereTwiceAreDataLoss) {
  const TensorSpec whole = Whole("model/w", {4});
  ExpectRefused({SlabOf(0, {whole}), SlabOf(1, {whole})}, absl::StatusCode::kDataLoss,
                {"'model.w'", "its 4 elements once, found 8 in 2 items"});
  // As many elements as are needed, one of them twice and one not at all.
  ExpectRefused(
      {SlabOf(0, {Spec("model/w", {4}, {0}, {2})}), SlabOf(1, {Spec("model/w", {4}, {1}, {2})})},
      absl::StatusCode::kDataLoss, {"'model.w'", "overlap", "[0:2)", "[1:3)"});
}

TEST(TensorEntriesTest, AShapeWhoseElementsAreNoNumberIsNeverWhole) {
  const uint64_t huge = uint64_t{1} << 32;
  // 2^64 + 2^32 elements: without the overflow, not the 2^32 that are there.
  const TensorSpec part = Spec("model/w", {huge + 1, huge}, {0, 0}, {1, huge}, 0, 1, Dtype::kInt8);
  ExpectRefused({SlabOf(0, {part}, "", CaptureMode::kSharded, kItemBytesMax)},
                absl::StatusCode::kDataLoss, {"'model.w'", "found 4294967296"});
}

TEST(TensorEntriesTest, AnotherTypeOrShapeOnAnotherRankIsDataLoss) {
  const TensorSpec half = Spec("model/w", {4}, {0}, {2});
  TensorSpec other = Spec("model/w", {4}, {2}, {2}, 0, 1, Dtype::kInt32);
  ExpectRefused({SlabOf(0, {half}), SlabOf(7, {other})}, absl::StatusCode::kDataLoss,
                {"'model/w'", "rank 7"});
  other = Spec("model/w", {5}, {2}, {2});
  ExpectRefused({SlabOf(0, {half}), SlabOf(7, {other})}, absl::StatusCode::kDataLoss,
                {"'model/w'", "rank 7"});
}

// As `unreft.dcp` saved it.
CopiedSlab SavedOf(uint64_t rank, std::vector<TensorSpec> specs, const std::string& header,
                   const std::string& values = "") {
  std::string extras = "UNRFTDCP";
  for (size_t i = 0; i < 8; ++i) extras += static_cast<char>(header.size() >> (8 * i));
  CopiedSlab slab = SlabOf(rank, std::move(specs), extras + header + values);
  auto saved = ReadDcpExtras(slab.extras);
  EXPECT_TRUE(saved.ok()) << saved.status();
  slab.saved = *std::move(saved);
  return slab;
}

TEST(TensorEntriesTest, WhatDcpSavedKeepsItsNameAndItsPlace) {
  const CopiedSlab first = SavedOf(0, {Whole("model/w", {2}), Whole("net.w", {2})},
                                   R"({"format":1,"values":[],"catalogue":{"model/w":{},
                                       "net.w":{"path":["net","w"]},
                                       "odd":{"path":["even"],"empty":["int8",[0]]},
                                       "none":{"path":["none"],"empty":["float32",[3,0]]},
                                       "other":{"empty":["complex32",[0]]},
                                       "list.0":{"path":["list",0]}}})");
  const CopiedSlab second = SavedOf(1, {Whole("list.0", {2})}, R"({"format":1,"values":[]})");
  const std::vector<DcpEntry> entries = EntriesOf({first, second});
  ASSERT_THAT(KeysOf(entries), ElementsAre("list.0", "model/w", "net.w", "none", "odd"));
  EXPECT_EQ(entries[0].path, (std::vector<PathElement>{"list", 0}));
  EXPECT_EQ(entries[1].path, (std::vector<PathElement>{"model/w"}));
  EXPECT_EQ(entries[2].path, (std::vector<PathElement>{"net", "w"}));
  EXPECT_EQ(entries[3].global_shape, (Dims{3, 0}));
  EXPECT_THAT(entries[3].chunks, IsEmpty());
  EXPECT_TRUE(entries[3].is_tensor);
  EXPECT_EQ(entries[4].path, (std::vector<PathElement>{"odd"})) << "DCP makes its keys of paths";
  EXPECT_EQ(entries[4].dtype, Dtype::kInt8);
}

TEST(TensorEntriesTest, TwoTensorsOfOneKeyAreRefusedWithBothNames) {
  const std::vector<CopiedSlab> slabs = {SlabOf(0, {Whole("model/a.w", {2})}),
                                         SlabOf(1, {Whole("model/b.w", {2})})};
  EXPECT_THAT(KeysOf(EntriesOf(slabs, {{"model.a.", "net."}})), ElementsAre("model.b.w", "net.w"));
  ExpectRefused(slabs, absl::StatusCode::kInvalidArgument,
                {"map", "'model/a.w'", "'model/b.w'", "'net.w'"},
                {{"model.a.", "net."}, {"model.b.", "net."}});
}

// --- values ---

PlainValue Text(std::string text) { return PlainValue{std::move(text)}; }
PlainValue Int(int64_t value) { return PlainValue{value}; }
PlainValue List(std::vector<PlainValue> items) {
  return PlainValue{PlainSequence{PlainSequence::Kind::kList, std::move(items)}};
}
PlainValue Dict(std::vector<PlainPair> items) { return PlainValue{PlainDict{std::move(items)}}; }
PlainValue Params(const std::vector<std::string>& names) {
  std::vector<PlainValue> items;
  for (const std::string& name : names) items.push_back(Text(name));
  return List(std::move(items));
}

std::string Number(uint64_t number, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i));
  return out;
}

// Of the values that these tests have; docs/formats/extras.md.
std::string Encoded(const PlainValue& value) {
  if (const auto* text = value.As<std::string>()) return "s" + Number(text->size(), 4) + *text;
  if (const auto* number = value.As<int64_t>()) return "i" + Number(uint64_t(*number), 8);
  if (const auto* number = value.As<double>()) {
    return "f" + Number(std::bit_cast<uint64_t>(*number), 8);
  }
  if (const auto* list = value.As<PlainSequence>()) {
    std::string out = "l" + Number(list->items.size(), 4);
    for (const PlainValue& item : list->items) out += Encoded(item);
    return out;
  }
  if (const auto* dict = value.As<PlainDict>()) {
    std::string out = "d" + Number(dict->items.size(), 4);
    for (const auto& [key, of] : dict->items) out += Encoded(key) + Encoded(of);
    return out;
  }
  EXPECT_TRUE(value.As<PlainNone>());
  return "N";
}

std::string Extras(const PlainValue& record) {
  return "UNRFXTRA" + Number(5, 2) + Number(5, 2) + Number(0, 4) + Encoded(record);
}

std::string ExtrasOf(PlainValue optimizers) {
  return Extras(Dict({{Text("step"), Int(3)}, {Text("optimizers"), std::move(optimizers)}}));
}

PlainValue Group(double lr, const std::vector<std::string>& params) {
  return Dict({{Text("lr"), PlainValue{lr}}, {Text("params"), Params(params)}});
}

PlainValue Optimizer(std::vector<PlainValue> groups, PlainValue states = Dict({})) {
  return Dict({{Text("groups"), List(std::move(groups))}, {Text("states"), std::move(states)}});
}

// Of ranks 0, 1, ..., that stored no tensors.
std::vector<CopiedSlab> RanksOf(const std::vector<std::string>& extras) {
  std::vector<CopiedSlab> slabs;
  for (const std::string& each : extras) slabs.push_back(SlabOf(slabs.size(), {}, each));
  return slabs;
}

// By key, but for the extras as they are.
std::map<std::string, PlainValue> ValuesOf(const std::vector<std::string>& extras,
                                           const KeyMap& map = kNoMap) {
  const auto entries = ValueEntries(RanksOf(extras), map);
  EXPECT_TRUE(entries.ok()) << entries.status();
  std::map<std::string, PlainValue> values;
  if (!entries.ok()) return values;
  for (const ValueEntry& entry : *entries) {
    if (entry.name.key.ends_with(".extras")) continue;
    EXPECT_TRUE(values.emplace(entry.name.key, entry.value).second) << entry.name.key;
  }
  return values;
}

using Values = std::map<std::string, PlainValue>;

TEST(ValueEntriesTest, HyperparametersAreThoseOfTheFirstRankThatHasTheGroup) {
  EXPECT_EQ(ValuesOf({ExtrasOf(List({Optimizer({Group(0.5, {"a"})})})),
                      ExtrasOf(List({Optimizer({Group(0.25, {"a"}), Group(0.125, {"b"})})}))}),
            (Values{{"optim.param_groups.0.lr", PlainValue{0.5}},
                    {"optim.param_groups.0.params", Params({"a"})},
                    {"optim.param_groups.1.lr", PlainValue{0.125}},
                    {"optim.param_groups.1.params", Params({"b"})}}));
}

TEST(ValueEntriesTest, TheirPlacesAreIndicesOfAList) {
  const auto entries =
      ValueEntries(RanksOf({ExtrasOf(List({Optimizer({Group(0.5, {})})}))}), kNoMap);
  ASSERT_TRUE(entries.ok()) << entries.status();
  const auto found = std::ranges::find(*entries, "optim.param_groups.0.lr",
                                       [](const ValueEntry& entry) { return entry.name.key; });
  ASSERT_NE(found, entries->end());
  EXPECT_EQ(found->name.path,
            (std::vector<PathElement>{"optim", "param_groups", int64_t{0}, "lr"}));
}

TEST(ValueEntriesTest, ParametersOfThePipelineAreJoinedInTheOrderOfRanks) {
  const Values values = ValuesOf({ExtrasOf(List({Optimizer({Group(0.5, {"c", "a"})})})),
                                  ExtrasOf(List({Optimizer({Group(0.5, {"b", "a", "d"})})})),
                                  ExtrasOf(List({Optimizer({Group(0.5, {"c", "e"})})}))});
  EXPECT_EQ(values.at("optim.param_groups.0.params"), Params({"c", "a", "b", "d", "e"}));
}

TEST(ValueEntriesTest, GroupsOfSeveralOptimizersFollowEachOther) {
  const Values values =
      ValuesOf({ExtrasOf(List({Optimizer({Group(1, {"a"})}), Optimizer({Group(2, {"b"})})})),
                // A later rank has one more group of the first: those of the second move on.
                ExtrasOf(List({Optimizer({Group(3, {"c"}), Group(4, {"d"})})}))});
  EXPECT_EQ(values, (Values{{"optim.param_groups.0.lr", PlainValue{1.0}},
                            {"optim.param_groups.0.params", Params({"a", "c"})},
                            {"optim.param_groups.1.lr", PlainValue{4.0}},
                            {"optim.param_groups.1.params", Params({"d"})},
                            {"optim.param_groups.2.lr", PlainValue{2.0}},
                            {"optim.param_groups.2.params", Params({"b"})}}));
}

TEST(ValueEntriesTest, PlainValuesOfStatesAreThoseOfTheFirstRankThatHasThem) {
  const auto state = [](const std::string& parameter, const std::string& key, int64_t value) {
    return PlainPair{Text(parameter), Dict({{Text(key), Int(value)}})};
  };
  const Values values =
      ValuesOf({ExtrasOf(List({Optimizer({}, Dict({state("a", "step", 1)}))})),
                ExtrasOf(List({Optimizer({}, Dict({state("a", "step", 2), state("b", "step", 3)})),
                               Optimizer({}, Dict({state("c.d", "k", 4)}))}))});
  EXPECT_EQ(values, (Values{{"optim.state.a.step", Int(1)},
                            {"optim.state.b.step", Int(3)},
                            {"optim.state.c.d.k", Int(4)}}));
}

TEST(ValueEntriesTest, TheMapHoldsForThem) {
  const Values values = ValuesOf({ExtrasOf(List({Optimizer({Group(0.5, {"a"})})}))},
                                 {{"optim.param_groups.", "groups."}});
  EXPECT_EQ(values, (Values{{"groups.0.lr", PlainValue{0.5}}, {"groups.0.params", Params({"a"})}}));
}

// A copy without hyperparameters would be found out when it is loaded.
TEST(ValueEntriesTest, ExtrasOfANewerReleaseAreRefusedByRank) {
  const std::string newer = "UNRFXTRA" + Number(9, 2) + Number(9, 2) + "what is not known";
  const absl::Status status = ValueEntries(RanksOf({ExtrasOf(List({})), newer}), kNoMap).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: extras have format"));
}

TEST(ValueEntriesTest, ExtrasOfEachRankAreATensorOfTheirBytes) {
  const std::string torch = ExtrasOf(List({}));
  const std::string others[] = {"of another origin\0\xff"s, "UNRFTDCP and so on"s, "\x80\x05}."s};
  const auto entries = ValueEntries(RanksOf({torch, "", others[0], others[1], others[2]}), kNoMap);
  ASSERT_TRUE(entries.ok()) << entries.status();
  const std::pair<int, std::string> expected[] = {
      {0, torch}, {2, others[0]}, {3, others[1]}, {4, others[2]}};
  ASSERT_THAT(*entries, SizeIs(std::size(expected))) << "none of a rank without";
  for (size_t i = 0; i < std::size(expected); ++i) {
    const auto& [rank, bytes] = expected[i];
    const std::string set = fmt::format("rank{}", rank);
    EXPECT_EQ((*entries)[i].name,
              (CopyName{"unreft." + set + ".extras", {"unreft", set, "extras"}}));
    EXPECT_EQ((*entries)[i].value, (PlainValue{PlainTensor{Dtype::kUint8, {bytes.size()}, bytes}}));
  }
}

TEST(ValueEntriesTest, WhatDcpSavedIsAsItWasSerialised) {
  const std::string catalogue = R"({"format":1,"values":[["lr",2]],"catalogue":{
      "w":{"path":["w"]},"lr":{"path":["opt","lr"],"value_of":0},
      "opt.lr":{"path":["opt","lr"],"value_of":1}}})";
  const std::vector<CopiedSlab> slabs = {
      SavedOf(0, {}, catalogue, "ab"),
      SavedOf(1, {}, R"({"format":1,"values":[["x",1],["opt.lr",3]]})", "xcde")};
  const auto entries = ValueEntries(slabs, {{"opt.", "optim."}});
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_THAT(*entries, SizeIs(4)) << "the extras of both, and two values";
  EXPECT_EQ((*entries)[2].name, (CopyName{"lr", {"lr"}}));
  EXPECT_EQ((*entries)[2].serialised, "ab");
  EXPECT_EQ((*entries)[3].name, (CopyName{"optim.lr", {"optim.lr"}}));
  EXPECT_EQ((*entries)[3].serialised, "cde");
}

TEST(ValueEntriesTest, AValueThatItsRankLacksIsDataLoss) {
  for (const int rank : {0, 1, 7}) {
    const std::string header =
        fmt::format(R"({{"format":1,"values":[],"catalogue":{{"lr":{{"value_of":{}}}}}}})", rank);
    const absl::Status status =
        ValueEntries(std::vector{SavedOf(0, {}, header),
                                 SavedOf(1, {}, R"({"format":1,"values":[["other",0]]})")},
                     kNoMap)
            .status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(fmt::format("rank {}: extras: needed the value of 'lr'", rank)));
  }
}

void ExpectBroken(const std::string& extras) {
  const absl::Status status =
      ValueEntries(RanksOf({ExtrasOf(List({})), "", extras}), kNoMap).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 2: "), HasSubstr("extras")));
}

TEST(ValueEntriesTest, ExtrasThatAreBrokenNameTheRank) {
  ExpectBroken("UNRFXTRA");
  ExpectBroken(ExtrasOf(List({})) + "N");
  ExpectBroken(Extras(List({})));
}

TEST(ValueEntriesTest, OptimizersThatAreNoneNameTheRank) {
  ExpectBroken(Extras(Dict({})));
  ExpectBroken(ExtrasOf(Int(1)));
  ExpectBroken(ExtrasOf(List({Int(1)})));
  ExpectBroken(ExtrasOf(List({Dict({})})));
  ExpectBroken(ExtrasOf(List({Dict({{Text("groups"), List({})}})})));
  ExpectBroken(ExtrasOf(List({Dict({{Text("groups"), Int(1)}, {Text("states"), Dict({})}})})));
  ExpectBroken(ExtrasOf(List({Optimizer({}, Int(1))})));
  // What comes after a group that is none.
  ExpectBroken(ExtrasOf(List({Optimizer({PlainValue{}, Group(0.5, {"a"}), Group(0.5, {"b"})})})));
  ExpectBroken(ExtrasOf(List({Optimizer({Dict({{Text("lr"), Int(1)}})})})));
  ExpectBroken(ExtrasOf(List({Optimizer({Dict({{Text("params"), Int(1)}})})})));
}

}  // namespace
}  // namespace unreft::durable
