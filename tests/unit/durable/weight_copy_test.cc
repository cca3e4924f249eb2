// Copies in safetensors: what each rank writes of its slab, compared element by element with what
// the slabs have, and what makes a copy complete.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "durable/copy_reader.h"
#include "durable/row_major.h"
#include "durable/safetensors.h"
#include "durable/weight_finish.h"
#include "durable/weight_plan.h"
#include "durable/weight_writer.h"
#include "tests/unit/durable/written_copy_fixture.h"

namespace unreft::durable {
namespace {

using layout::Box;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The bytes of each element of a tensor, by its index in the whole tensor.
using Elements = std::map<Dims, std::string>;

// What the slabs have of each tensor, by logical name: a part's elements one after the other.
std::map<std::string, Elements> TruthOf(const std::vector<MemorySlab>& slabs) {
  std::map<std::string, Elements> truth;
  for (const MemorySlab& slab : slabs) {
    const layout::SlotManifest& manifest = slab.manifest();
    for (const layout::CapturedPart& part : manifest.parts) {
      const TensorSpec& spec = manifest.tensors[part.tensor];
      const layout::LogicalTensor logical = layout::ToLogical(spec);
      const uint64_t element = DtypeBytes(spec.dtype);
      uint64_t at = 0;  // in the shard
      ForEachElement(layout::BoxOf(spec), [&](const Dims& in_memory) {
        Dims index = in_memory;
        for (size_t i = 0; i < logical.order.size(); ++i) index[logical.order[i]] = in_memory[i];
        if (at >= part.shard_begin && at < part.shard_begin + part.bytes) {
          const auto* const begin = reinterpret_cast<const char*>(slab.data().data());
          truth[logical.spec.name][index] =
              std::string(begin + part.slab_offset + at - part.shard_begin, element);
        }
        at += element;
      });
    }
  }
  return truth;
}

class WeightCopyTest : public WrittenCopyTest {
 protected:
  static CopyOrder WeightOrder(uint64_t world) {
    CopyOrder order = OrderOf(world);
    order.set_format(CopyOrder::SAFETENSORS);
    return order;
  }

  // The parts of all ranks, as nodes write them.
  void WriteParts(std::vector<std::vector<TensorSpec>> ranks, KeyMap map = {},
                  layout::CaptureMode mode = layout::CaptureMode::kSharded) {
    ASSERT_TRUE(store_.Put(kOrderFile, EncodeOrder(WeightOrder(ranks.size()))).ok());
    ASSERT_TRUE(store_.Put(kIncompleteFile, "").ok());
    std::set<std::string> names;
    for (uint64_t rank = 0; rank < ranks.size(); ++rank) {
      slabs_.emplace_back(std::move(ranks[rank]), Rank{rank}, ranks.size(), mode);
      names.merge(ModelNames(slabs_.back().manifest()));
    }
    names_.emplace(PlainNames(names), std::move(map));
    for (MemorySlab& slab : slabs_) {
      const absl::Status status =
          WriteWeights(slab, store_, kCopyId, *names_, [](uint64_t, uint64_t) { return true; });
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  absl::StatusOr<FinishedCopy> Finish() {
    return FinishWeights(store_, WeightOrder(slabs_.size()), *names_);
  }

  // What the files have, by key: each entry a row-major box.
  std::map<std::string, Elements> Found() {
    std::map<std::string, Elements> found;
    for (const MemorySlab& slab : slabs_) {
      const WeightPlan plan = PlanWeights(slab.manifest(), *names_).value();
      for (const WeightFile& file : plan.files) {
        const std::string bytes = Bytes(file.name);
        EXPECT_EQ(bytes.size(), file.bytes);
        EXPECT_EQ(bytes.substr(0, file.header.size()), file.header);
        uint64_t at = file.header.size();
        std::set<std::string> keys;
        for (const WeightEntry& entry : file.entries) {
          EXPECT_TRUE(keys.insert(entry.key).second) << entry.key << " twice in " << file.name;
          const uint64_t element = DtypeBytes(slab.manifest().tensors[entry.from.tensor].dtype);
          EXPECT_EQ(at % element, 0u) << entry.key << " cannot be mapped";
          ForEachElement(entry.box, [&](const Dims& index) {
            const bool is_new = found[entry.key].emplace(index, bytes.substr(at, element)).second;
            EXPECT_TRUE(is_new) << "an element of " << entry.key << " twice";
            at += element;
          });
        }
        EXPECT_EQ(at, bytes.size());
      }
    }
    return found;
  }

  std::set<std::string> Names() {
    std::set<std::string> names;
    const std::vector<ColdEntry> files = store_.List("").value();
    for (const ColdEntry& file : files) names.insert(file.name);
    return names;
  }

  std::optional<WeightNames> names_;
};

TensorSpec InOrder(TensorSpec logical, const std::vector<uint32_t>& order) {
  const auto spec = layout::InMemoryOrder(std::move(logical), order);
  UNREFT_CHECK(spec.ok());
  return *spec;
}

// Two ranks that share tensors by boxes and by replicas, of several types, sizes and orders.
std::vector<std::vector<TensorSpec>> Sharded() {
  std::vector<std::vector<TensorSpec>> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back({Whole("model/odd", {13}, rank, 2, Dtype::kBool),
                     Spec("model/w", {60, 7}, {30 * rank, 0}, {30, 7}),
                     InOrder(Spec("model/conv", {16, 6, 3, 3}, {8 * rank, 0, 0, 0}, {8, 6, 3, 3}),
                             {0, 2, 3, 1}),
                     InOrder(Whole("model/turned", {50, 90}, rank, 2, Dtype::kBfloat16), {1, 0}),
                     Whole("model/shared", {37, 41, 3}, rank, 2, Dtype::kBfloat16),
                     Whole(fmt::format("rank{}/buffer/seen", rank), {}, 0, 1, Dtype::kInt64),
                     Whole("optim/w/exp_avg", {60, 7}, rank, 2),
                     Whole("master/w", {60, 7}, rank, 2)});
  }
  return ranks;
}

TEST_F(WeightCopyTest, TheFilesOfAllRanksHaveEachElementOfTheModelOnce) {
  WriteParts(Sharded());
  const std::map<std::string, Elements> truth = TruthOf(slabs_);
  std::map<std::string, Elements> expected;
  for (const char* const name : {"odd", "w", "conv", "turned", "shared"}) {
    expected[name] = truth.at(fmt::format("model/{}", name));
  }
  expected["seen"] = truth.at("rank0/buffer/seen");
  EXPECT_EQ(Found(), expected);
  const auto finished = Finish();
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_EQ(finished->tensors, 6u);
  EXPECT_EQ(finished->tensors_left_out, 3u);  // with the buffer of rank 1
  EXPECT_FALSE(finished->has_index);
  uint64_t bytes = 0;
  for (const std::string& name : Names()) {
    if (name.ends_with(".safetensors")) bytes += Bytes(name).size();
  }
  EXPECT_EQ(finished->bytes, bytes);
}

TEST_F(WeightCopyTest, RandomShardsOfRandomTensorsAreWrittenAsTheyAre) {
  Random random(11);
  constexpr Dtype kDtypes[] = {Dtype::kInt8, Dtype::kFloat16, Dtype::kFloat32, Dtype::kComplex64};
  for (int round = 0; round < 60; ++round) {
    constexpr uint64_t kWorld = 3;
    std::vector<std::vector<TensorSpec>> ranks(kWorld);
    for (int tensor = 0; tensor < 4; ++tensor) {
      const Dims shape = RandomShape(random, 4, 12);
      const Dtype dtype = kDtypes[random.Below(4)];
      std::vector<uint32_t> order;
      for (uint32_t i = 0; i < shape.size(); ++i) order.insert(order.begin(), i);
      const bool is_ordered = random.OneIn(2);
      for (const Box& box : RandomShards(random, shape)) {
        TensorSpec spec =
            Spec(fmt::format("model/t{}", tensor), shape, box.offset, box.extent, 0, 1, dtype);
        ranks[random.Below(kWorld)].push_back(is_ordered ? InOrder(spec, order) : spec);
      }
    }
    WriteParts(std::move(ranks), {{"model.", "model/"}});
    ASSERT_EQ(Found(), TruthOf(slabs_)) << round;
    const auto finished = Finish();
    ASSERT_TRUE(finished.ok()) << finished.status() << " in round " << round;
    EXPECT_EQ(finished->tensors, 4u);
    RemoveCopy();
  }
}

// 4 floats of a row of 8 are with one replica, and the rest is with the other, so that one of them
// has two boxes.
TEST_F(WeightCopyTest, TheSecondBoxOfATensorIsInASecondFile) {
  layout::SlotManifest manifest;
  manifest.rank = Rank{3};
  manifest.world = 8;
  manifest.tensors = {Whole("model/a", {4, 8}), Whole("model/b", {3}, 0, 1, Dtype::kInt64)};
  manifest.parts = {{0, 4 * 4, 28 * 4, 0}, {1, 0, 24, 128}};
  manifest.data_bytes = 152;
  const WeightPlan plan = PlanWeights(manifest, {{"model/a", "model/b"}, {}}).value();
  ASSERT_EQ(plan.files.size(), 2u);
  EXPECT_EQ(plan.files[0].name, "model-rank00003-of-00008-part1.safetensors");
  EXPECT_EQ(plan.files[1].name, "model-rank00003-of-00008-part2.safetensors");
  const std::vector<SafetensorsEntry> first = {{"b", Dtype::kInt64, {0}, {3}},
                                               {"a", Dtype::kFloat32, {0, 4}, {1, 4}}};
  const std::vector<SafetensorsEntry> second = {{"a", Dtype::kFloat32, {1, 0}, {3, 8}}};
  EXPECT_EQ(plan.files[0].header, SafetensorsHeader(first).value());
  EXPECT_EQ(plan.files[1].header, SafetensorsHeader(second).value());
  EXPECT_EQ(plan.files[0].bytes, plan.files[0].header.size() + 24 + 16);
  EXPECT_EQ(plan.bytes, plan.files[0].bytes + plan.files[1].bytes);
  EXPECT_EQ(plan.files[1].entries[0].from.slab_offset, 16u);
}

TEST_F(WeightCopyTest, WhereEachTensorIsWholeAnIndexNamesItsFile) {
  WriteParts({{Whole("model/first.w", {3, 5})},
              {Whole("model/last.w", {2}, 0, 1, Dtype::kInt64), Whole("optim/last.w/step", {})}});
  const auto finished = Finish();
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_TRUE(finished->has_index);
  EXPECT_EQ(Bytes(kIndexFile),
            SafetensorsIndex({{"first.w", "model-rank00000-of-00002-part1.safetensors"},
                              {"last.w", "model-rank00001-of-00002-part1.safetensors"}},
                             60 + 16));
  EXPECT_EQ(Names(), (std::set<std::string>{".unreft/copy", ".unreft/order", ".unreft/rank_0",
                                            ".unreft/rank_1", kIndexFile,
                                            "model-rank00000-of-00002-part1.safetensors",
                                            "model-rank00001-of-00002-part1.safetensors"}));
}

TEST_F(WeightCopyTest, ARankWithoutWeightsHasNoFile) {
  WriteParts({{Whole("model/w", {3, 5})}, {Whole("optim/w/step", {})}});
  ASSERT_TRUE(Finish().ok());
  EXPECT_THAT(Names(), Not(Contains("model-rank00001-of-00002-part1.safetensors")));
}

TEST_F(WeightCopyTest, OfReplicasThatCapturedAllTheFirstsIsWritten) {
  WriteParts({{Whole("model/w", {9, 9}, 1, 2)}, {Whole("model/w", {9, 9}, 0, 2)}}, {},
             layout::CaptureMode::kFull);
  ASSERT_TRUE(Finish().ok());
  EXPECT_THAT(Names(), AllOf(Contains("model-rank00001-of-00002-part1.safetensors"),
                             Not(Contains("model-rank00000-of-00002-part1.safetensors"))));
}

TEST_F(WeightCopyTest, OfAProgramOfAnotherKindEverythingIsWrittenUnderItsName) {
  WriteParts({{Whole("weights0", {7})}, {Whole("weights1", {7})}});
  const auto finished = Finish();
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_EQ(finished->tensors_left_out, 0u);
  EXPECT_EQ(Found(), TruthOf(slabs_));
}

TEST_F(WeightCopyTest, TwoTensorsOfOneKeyAreRefused) {
  WriteParts({{Whole("model/a", {7})}, {Whole("model/b", {7})}},
             {{"model.a", "w"}, {"model.b", "w"}});
  const absl::Status status = Finish().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'model/a'"), HasSubstr("'model/b'"), HasSubstr("both be 'w'")));
  EXPECT_THAT(Names(), Contains(kIncompleteFile));
}

TEST_F(WeightCopyTest, ATensorThatIsNotWholeIsRefused) {
  WriteParts({{Spec("model/w", {60, 7}, {0, 0}, {30, 7})}, {Whole("model/v", {3})}});
  const absl::Status status = Finish().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'w'"), HasSubstr("420"), HasSubstr("210")));
  EXPECT_THAT(Names(), AllOf(Contains(kIncompleteFile), Not(Contains(kIndexFile))));
}

TEST_F(WeightCopyTest, APartThatIsNotWholeIsNotCompleted) {
  WriteParts({{Whole("model/w", {3, 5})}, {Whole("model/v", {3})}});
  const std::string file = "model-rank00001-of-00002-part1.safetensors";
  const std::string bytes = Bytes(file);
  const auto expect_lost = [&] {
    const absl::Status status = Finish().status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 of the copy"));
    EXPECT_THAT(Names(), Contains(kIncompleteFile));
  };
  Replace(file, bytes.substr(1));
  expect_lost();
  Replace(file, bytes + "x");
  expect_lost();
  ASSERT_TRUE(store_.Remove(file).ok());
  expect_lost();
  ASSERT_TRUE(store_.Put(file, bytes).ok());
  const CopySlab right = RecordOf(Rank{1});
  CopySlab wrong = right;
  wrong.mutable_files(0)->set_bytes(bytes.size() + 1);
  Replace(SlabFile(Rank{1}), EncodeSlab(wrong));
  expect_lost();
  wrong = right;
  wrong.set_format(CopyOrder::DCP);
  Replace(SlabFile(Rank{1}), EncodeSlab(wrong));
  expect_lost();
  Replace(SlabFile(Rank{1}), EncodeSlab(right));
  EXPECT_TRUE(Finish().ok());
  EXPECT_THAT(Names(), Not(Contains(kIncompleteFile)));
}

TEST_F(WeightCopyTest, WhatCannotBePutIntoRowMajorOrderIsRefusedByName) {
  layout::SlotManifest manifest;
  manifest.world = 1;
  constexpr uint64_t kRows = kAtOnceBytesMax / 4 / 1024 + 1;
  manifest.tensors = {InOrder(Whole("model/turned", {1024, kRows}), {1, 0})};
  manifest.parts = {{0, 0, 4 * 1024 * kRows, 0}};
  manifest.data_bytes = 4 * 1024 * kRows;
  const absl::Status status = PlanWeights(manifest, {{"model/turned"}, {}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'model/turned'"), HasSubstr("268439552"), HasSubstr("268435456")));
  manifest.tensors = {InOrder(Whole("model/turned", {1024, kRows - 1}), {1, 0})};
  manifest.parts = {{0, 0, 4 * 1024 * (kRows - 1), 0}};
  EXPECT_TRUE(PlanWeights(manifest, {{"model/turned"}, {}}).ok());
}

TEST_F(WeightCopyTest, ATypeThatTheFormatDoesNotHaveIsRefusedWhereItIsAWeight) {
  layout::SlotManifest manifest;
  manifest.world = 1;
  manifest.tensors = {Whole("model/w", {2}), Whole("optim/w/phase", {2}, 0, 1, Dtype::kComplex128)};
  manifest.parts = {{0, 0, 8, 0}, {1, 0, 32, 64}};
  manifest.data_bytes = 96;
  EXPECT_TRUE(PlanWeights(manifest, {{"model/w"}, {}}).ok());
  manifest.tensors[1].name = "model/phase";
  const absl::Status status = PlanWeights(manifest, {{"model/phase", "model/w"}, {}}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'phase'"), HasSubstr("complex128")));
}

TEST_F(WeightCopyTest, NoJobGoesOnFromIt) {
  WriteParts({{Whole("model/w", {3, 5})}});
  ASSERT_TRUE(Finish().ok());
  const absl::Status status = CopyReader::Open(store_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the weights alone"));
}

// Bytes 8 and 10 of a file of ours are its format, and that of the oldest reader.
TEST_F(WeightCopyTest, ReadersOfDcpCopiesAloneRefuseIt) {
  WriteParts({{Whole("model/w", {3, 5})}});
  ASSERT_TRUE(Finish().ok());
  for (const char* const file : {kOrderFile, ".unreft/rank_0", kRecordFile}) {
    EXPECT_EQ(Bytes(file).substr(8, 4), std::string("\2\0\2\0", 4)) << file;
  }
  RemoveCopy();
  WriteCopy({{Whole("model/w", {3, 5})}});
  for (const char* const file : {kOrderFile, ".unreft/rank_0", kRecordFile}) {
    EXPECT_EQ(Bytes(file).substr(8, 4), std::string("\1\0\1\0", 4)) << file;
  }
}

TEST_F(WeightCopyTest, AnOrderInAFormatThatIsNotKnownIsRefused) {
  CopyOrder order = WeightOrder(1);
  order.set_format(static_cast<CopyOrder::Format>(7));
  const absl::Status status = DecodeOrder(EncodeOrder(order), "the order").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("the order"), HasSubstr("7")));
}

}  // namespace
}  // namespace unreft::durable
