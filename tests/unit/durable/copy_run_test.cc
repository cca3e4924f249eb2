// Copies of a version of two nodes, with two ranks each, by a process on each node: what they write
// together, and what is left of it when something goes wrong.

#include "durable/copy_run.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "durable/copy_record.h"
#include "durable/weight_finish.h"
#include "tests/fakes/memory_cold_store.h"
#include "tests/unit/durable/sealed_slab_fixture.h"

namespace unreft::durable {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kWorld = 4;
const std::string kId(16, 'i');

std::set<std::string> NamesIn(ColdStore& store) {
  std::set<std::string> names;
  const std::vector<ColdEntry> files = store.List("").value();
  for (const ColdEntry& file : files) names.insert(file.name);
  return names;
}

class CopyRunTest : public ::testing::Test {
 protected:
  CopyRunTest() {
    for (uint64_t rank = 0; rank < kWorld; ++rank) nodes_[rank / 2].Seal(Rank{rank}, kWorld);
  }

  // Time passes by pauses alone, so that what waits for ever ends at once.
  CopyPace Pace() {
    CopyPace pace;
    pace.now = [this] { return Time() + Duration(now_.load()); };
    pace.pause = [this](Duration duration) {
      now_ += duration.count() / 50;
      std::this_thread::yield();
      return !is_to_end_;
    };
    return pace;
  }

  static CopyTask TaskOf(uint64_t node, std::string id = kId) {
    CopyTask task;
    task.node = NodeSlot{node};
    task.part = {.job = "job",
                 .place = node,
                 .version = kVersion,
                 .id = std::move(id),
                 .ranks = {Rank{2 * node}, Rank{2 * node + 1}},
                 .item_bytes_max = 2000};
    return task;
  }
  LeadTask LeadTaskOf(std::string id = kId) const {
    LeadTask task;
    task.order.set_format(format_);
    task.own = TaskOf(0, id);
    task.order.set_job("job");
    task.order.set_id(id);
    task.order.set_timeline(kVersion.timeline.value);
    task.order.set_step(kVersion.step.value);
    task.order.set_world(kWorld);
    task.nodes = {NodeSlot{0}, NodeSlot{1}};
    task.map = map_;
    return task;
  }

  struct Outcome {
    absl::StatusOr<FinishedCopy> lead = absl::UnknownError("");
    absl::Status follow;
  };
  // Both at once; the follower's failure ends the leader, as who runs the copy sees to.
  Outcome Run(ColdStore& store, ColdStore& of_follower) {
    Outcome outcome;
    std::thread follower([&] {
      outcome.follow = FollowCopy(nodes_[1].segments(), of_follower, TaskOf(1), Pace(),
                                  [](uint64_t, uint64_t) { return true; });
      if (!outcome.follow.ok()) is_to_end_ = true;
    });
    outcome.lead = LeadCopy(nodes_[0].segments(), store, LeadTaskOf(), Pace(), on_progress_);
    if (!outcome.lead.ok()) is_to_end_ = true;
    follower.join();
    return outcome;
  }
  Outcome Run() { return Run(store_, store_); }

  SealedSlabs nodes_[2] = {SealedSlabs(0), SealedSlabs(1)};
  MemoryColdStore store_;
  CopyOrder::Format format_ = CopyOrder::DCP;
  KeyMap map_;
  std::atomic<int64_t> now_ = 0;
  std::atomic<bool> is_to_end_ = false;
  std::function<bool(uint64_t, uint64_t)> on_progress_ = [](uint64_t, uint64_t) { return true; };
};

TEST_F(CopyRunTest, AllNodesWriteTheirPartsAndTheMarkComesLast) {
  const Outcome outcome = Run();
  ASSERT_TRUE(outcome.lead.ok()) << outcome.lead.status();
  EXPECT_TRUE(outcome.follow.ok()) << outcome.follow;
  EXPECT_EQ(outcome.lead->tensors, 1 + kWorld);
  EXPECT_THAT(outcome.lead->left_out, IsEmpty());
  EXPECT_EQ(
      NamesIn(store_),
      (std::set<std::string>{".metadata", ".unreft/copy", ".unreft/order", ".unreft/rank_0",
                             ".unreft/rank_1", ".unreft/rank_2", ".unreft/rank_3", "__0_0.distcp",
                             "__1_0.distcp", "__2_0.distcp", "__3_0.distcp", "__values_0.distcp"}));
}

TEST_F(CopyRunTest, EachItemHasTheBytesOfItsBox) {
  ASSERT_TRUE(Run().lead.ok());
  uint64_t elements = 0;
  for (uint64_t number = 0; number < kWorld; ++number) {
    const Rank rank{number};
    const auto slab = DecodeSlab(*store_.Get(SlabFile(rank), kRecordBytesMax), SlabFile(rank));
    ASSERT_TRUE(slab.ok()) << slab.status();
    const auto manifest = layout::DecodeManifest(slab->manifest());
    const auto plan = PlanCopy(*manifest, slab->item_bytes_max());
    ASSERT_TRUE(plan.ok());
    const std::string file = *store_.Get(ItemsFile(rank), uint64_t{1} << 30);
    for (const CopyItem& item : plan->items) {
      if (item.tensor != 0) continue;
      const std::string head = ArchiveHead(ArchiveOf(manifest->tensors[0], item.box));
      EXPECT_EQ(file.substr(item.at, head.size()), head);
      for (uint64_t i = 0; i < item.box.elements(); ++i) {
        float value = 0;
        std::memcpy(&value, file.data() + item.at + head.size() + i * sizeof(value), sizeof(value));
        const uint64_t columns = item.box.extent[1];
        EXPECT_EQ(value, SealedSlabs::ValueOf(item.box.offset[0] + i / columns,
                                              item.box.offset[1] + i % columns));
        ++elements;
      }
    }
  }
  EXPECT_EQ(elements, kWorld * kRows * kColumns);
}

TEST_F(CopyRunTest, ANodeThatDoesNotSeeTheOrderWritesNothing) {
  const absl::Status status =
      FollowCopy(nodes_[1].segments(), store_, TaskOf(1), Pace(), on_progress_);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("node 1 does not see the order"));
  EXPECT_THAT(NamesIn(store_), IsEmpty());
}

TEST_F(CopyRunTest, ADirectoryThatIsNotSharedIsNoticedBeforeDataAreWritten) {
  MemoryColdStore other;
  const Outcome outcome = Run(store_, other);
  EXPECT_FALSE(outcome.lead.ok());
  EXPECT_FALSE(outcome.follow.ok());
  EXPECT_THAT(NamesIn(store_), IsEmpty());
  EXPECT_THAT(NamesIn(other), IsEmpty());
}

TEST_F(CopyRunTest, TheNodesThatDoNotSeeItAreNamedByWhoLeads) {
  const auto outcome = LeadCopy(nodes_[0].segments(), store_, LeadTaskOf(), Pace(), on_progress_);
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome.status())) << outcome.status();
  EXPECT_THAT(std::string(outcome.status().message()),
              AllOf(HasSubstr("node 1 does not see"), HasSubstr("all nodes share")));
  EXPECT_THAT(NamesIn(store_), IsEmpty());
}

TEST_F(CopyRunTest, ADirectoryThatHasSomethingIsLeftAsItIs) {
  ASSERT_TRUE(store_.Put(".metadata", "of another").ok());
  const auto outcome = LeadCopy(nodes_[0].segments(), store_, LeadTaskOf(), Pace(), on_progress_);
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome.status()));
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("has a checkpoint already"));
  EXPECT_EQ(*store_.Get(".metadata", 100), "of another");
  ASSERT_TRUE(store_.Remove(".metadata").ok());
  ASSERT_TRUE(store_.Put("notes.txt", "mine").ok());
  EXPECT_THAT(std::string(LeadCopy(nodes_[0].segments(), store_, LeadTaskOf(), Pace(), on_progress_)
                              .status()
                              .message()),
              AllOf(HasSubstr("needed an empty directory"), HasSubstr("notes.txt")));
  EXPECT_EQ(NamesIn(store_), std::set<std::string>{"notes.txt"});
}

TEST_F(CopyRunTest, TheOrderOfAnotherCopyIsNotFollowed) {
  LeadTask task = LeadTaskOf(std::string(16, 'o'));
  ASSERT_TRUE(store_.Put(kOrderFile, EncodeOrder(task.order)).ok());
  const absl::Status status =
      FollowCopy(nodes_[1].segments(), store_, TaskOf(1), Pace(), on_progress_);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(NamesIn(store_), std::set<std::string>{kOrderFile});
}

TEST_F(CopyRunTest, ABlockThatHasRottedFailsTheCopyByName) {
  nodes_[1].FlipData(Rank{3}, 5000);
  const Outcome outcome = Run();
  EXPECT_TRUE(absl::IsDataLoss(outcome.follow)) << outcome.follow;
  EXPECT_THAT(std::string(outcome.follow.message()), HasSubstr("block 1 of rank 3"));
  EXPECT_FALSE(outcome.lead.ok());
  EXPECT_THAT(NamesIn(store_), IsEmpty());
}

TEST_F(CopyRunTest, ASlotThatWasGivenUpMeanwhileIsNoticed) {
  on_progress_ = [this](uint64_t written, uint64_t) {
    if (written > 0) nodes_[0].GiveUp(Rank{1});
    return true;
  };
  const Outcome outcome = Run();
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome.lead.status())) << outcome.lead.status();
  EXPECT_THAT(std::string(outcome.lead.status().message()), HasSubstr("its pin ended"));
  EXPECT_THAT(NamesIn(store_), Not(Contains(kMetadataFile)));
}

TEST_F(CopyRunTest, RanksWithoutASlabAreNamed) {
  nodes_[1].GiveUp(Rank{2});
  const Outcome outcome = Run();
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome.follow)) << outcome.follow;
  EXPECT_THAT(std::string(outcome.follow.message()), HasSubstr("found none of ranks 2"));
  EXPECT_THAT(NamesIn(store_), IsEmpty());
}

TEST_F(CopyRunTest, CancelledItTakesAwayWhatItWrote) {
  on_progress_ = [](uint64_t written, uint64_t) { return written == 0; };
  const Outcome outcome = Run();
  EXPECT_TRUE(absl::IsCancelled(outcome.lead.status())) << outcome.lead.status();
  EXPECT_THAT(NamesIn(store_), IsEmpty());
}

// Every write of a copy fails once: the copy then is whole, or there is none.
TEST_F(CopyRunTest, WhicheverWriteFailsNothingHalfWrittenLooksWhole) {
  uint64_t failed = 0;
  for (uint64_t nth = 1; nth < 400; ++nth) {
    MemoryColdStore store;
    store.FailWrite(nth, absl::ResourceExhaustedError("the disk is full"));
    is_to_end_ = false;
    now_ = 0;
    const Outcome outcome = Run(store, store);
    const std::set<std::string> names = NamesIn(store);
    EXPECT_EQ(names.contains(kMetadataFile), outcome.lead.ok()) << "write " << nth;
    if (outcome.lead.ok()) break;
    ++failed;
    EXPECT_THAT(names, Not(Contains(kOrderFile))) << "write " << nth;
  }
  EXPECT_GT(failed, 50u);
}

// Of the tests that follow.
class WeightRunTest : public CopyRunTest {
 protected:
  WeightRunTest() { format_ = CopyOrder::SAFETENSORS; }
};

// The keys depend on what the ranks of both nodes have.
TEST_F(WeightRunTest, AllNodesWriteTheirWeightsAndWhatSaysIncompleteGoesLast) {
  const Outcome outcome = Run();
  ASSERT_TRUE(outcome.lead.ok()) << outcome.lead.status();
  EXPECT_TRUE(outcome.follow.ok()) << outcome.follow;
  EXPECT_EQ(outcome.lead->tensors, 2u);
  EXPECT_EQ(outcome.lead->tensors_left_out, kWorld - 1);
  EXPECT_FALSE(outcome.lead->has_index);
  EXPECT_EQ(NamesIn(store_),
            (std::set<std::string>{".unreft/copy", ".unreft/order", ".unreft/rank_0",
                                   ".unreft/rank_1", ".unreft/rank_2", ".unreft/rank_3",
                                   "model-rank00000-of-00004-part1.safetensors",
                                   "model-rank00001-of-00004-part1.safetensors",
                                   "model-rank00002-of-00004-part1.safetensors",
                                   "model-rank00003-of-00004-part1.safetensors"}));
  const auto has = [&](uint64_t rank, const std::string& key) {
    const std::string file = WeightFileName(Rank{rank}, kWorld, 1);
    return store_.Get(file, uint64_t{1} << 30)->find(key) != std::string::npos;
  };
  for (uint64_t rank = 0; rank < kWorld; ++rank) {
    EXPECT_TRUE(has(rank, "\"w\"")) << rank;
    EXPECT_EQ(has(rank, "\"seen\""), rank == 0) << rank;
  }
}

TEST_F(WeightRunTest, TheMapIsKnownToAllNodes) {
  map_ = {{"model.", "net."}};
  ASSERT_TRUE(Run().lead.ok());
  for (uint64_t rank = 0; rank < kWorld; ++rank) {
    const std::string file = WeightFileName(Rank{rank}, kWorld, 1);
    EXPECT_THAT(*store_.Get(file, uint64_t{1} << 30), HasSubstr("\"net.w\"")) << rank;
  }
}

// As long as it is written, readers of all files of that ending find one that is none.
TEST_F(WeightRunTest, FromTheFirstByteOnUntilItIsCompleteItSaysThatItIsNot) {
  uint64_t seen = 0;
  on_progress_ = [&](uint64_t, uint64_t) {
    EXPECT_EQ(*store_.Get(kIncompleteFile, 0), "");
    ++seen;
    return true;
  };
  ASSERT_TRUE(Run().lead.ok());
  EXPECT_GT(seen, 0u);
  EXPECT_THAT(NamesIn(store_), Not(Contains(kIncompleteFile)));
}

TEST_F(WeightRunTest, CancelledItLeavesNothing) {
  on_progress_ = [](uint64_t written, uint64_t) { return written == 0; };
  const Outcome outcome = Run();
  EXPECT_TRUE(absl::IsCancelled(outcome.lead.status())) << outcome.lead.status();
  EXPECT_THAT(NamesIn(store_), IsEmpty());
}

TEST_F(WeightRunTest, RanksWithoutASlabAreNamed) {
  nodes_[1].GiveUp(Rank{2});
  const Outcome outcome = Run();
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome.follow)) << outcome.follow;
  EXPECT_THAT(std::string(outcome.follow.message()), HasSubstr("found none of ranks 2"));
  EXPECT_THAT(NamesIn(store_), IsEmpty());
}

TEST_F(WeightRunTest, WhicheverWriteFailsNothingHalfWrittenLooksWhole) {
  uint64_t failed = 0;
  bool was_whole = false;
  for (uint64_t nth = 1; nth < 400 && !was_whole; ++nth) {
    MemoryColdStore store;
    store.FailWrite(nth, absl::ResourceExhaustedError("the disk is full"));
    is_to_end_ = false;
    now_ = 0;
    const Outcome outcome = Run(store, store);
    const std::set<std::string> names = NamesIn(store);
    was_whole = outcome.lead.ok();
    const bool has_weights = std::ranges::any_of(names, [](const std::string& name) {
      return name.ends_with(".safetensors") && name != kIncompleteFile;
    });
    EXPECT_EQ(has_weights && !names.contains(kIncompleteFile), was_whole) << "write " << nth;
    if (was_whole) break;
    ++failed;
    EXPECT_THAT(names, Not(Contains(kOrderFile))) << "write " << nth;
  }
  EXPECT_TRUE(was_whole);
  EXPECT_GT(failed, 20u);
}

TEST_F(WeightRunTest, ACompleteOneIsLeftAsItIs) {
  ASSERT_TRUE(Run().lead.ok());
  const std::set<std::string> before = NamesIn(store_);
  const auto outcome = LeadCopy(nodes_[0].segments(), store_, LeadTaskOf(), Pace(), on_progress_);
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome.status()));
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("has a checkpoint already"));
  EXPECT_EQ(NamesIn(store_), before);
}

TEST_F(WeightRunTest, OneThatWasRemovedMeanwhileIsNotCompleted) {
  ASSERT_TRUE(Run().lead.ok());
  ASSERT_TRUE(store_.Remove(kRecordFile).ok());
  ASSERT_TRUE(store_.Remove(kOrderFile).ok());
  ASSERT_TRUE(store_.Put(kIncompleteFile, "").ok());
  const std::vector<std::string> plain = {"model/w", "rank0/buffer/seen"};
  const absl::Status status =
      FinishWeights(store_, LeadTaskOf().order, WeightNames(plain, {})).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(NamesIn(store_), Contains(kIncompleteFile));
}

// As when a process hung, and somebody has cleaned up and begun another copy since.
TEST_F(CopyRunTest, WhatIsOfAnotherCopyByNowIsNotTouched) {
  const std::string other(16, 'o');
  on_progress_ = [&](uint64_t written, uint64_t) {
    if (written == 0) return true;
    for (const std::string& name : NamesIn(store_)) EXPECT_TRUE(store_.Remove(name).ok());
    EXPECT_TRUE(store_.Put(kOrderFile, EncodeOrder(LeadTaskOf(other).order)).ok());
    EXPECT_TRUE(store_.Put(kMetadataFile, "of the other").ok());
    return false;
  };
  LeadTask task = LeadTaskOf();
  task.nodes = {NodeSlot{0}};
  EXPECT_FALSE(LeadCopy(nodes_[0].segments(), store_, task, Pace(), on_progress_).ok());
  EXPECT_EQ(NamesIn(store_), (std::set<std::string>{kOrderFile, kMetadataFile}));
}

// The storage of a node may hang until there is another copy in the directory.
TEST_F(CopyRunTest, WhoFollowsTooLateTouchesNothing) {
  const std::string part = SlabFile(Rank{2});
  const auto follow = [&](auto meanwhile) {
    for (const std::string& name : NamesIn(store_)) UNREFT_CHECK(store_.Remove(name).ok());
    UNREFT_CHECK(store_.Put(kOrderFile, EncodeOrder(LeadTaskOf().order)).ok());
    UNREFT_CHECK(store_.Put(kGoFile, "").ok());
    return FollowCopy(nodes_[1].segments(), store_, TaskOf(1), Pace(),
                      [&](uint64_t written, uint64_t) {
                        if (written == 0) return true;
                        UNREFT_CHECK(store_.Remove(kGoFile).ok());
                        meanwhile();
                        return false;
                      });
  };
  EXPECT_FALSE(follow([&] {
                 UNREFT_CHECK(store_.Remove(kOrderFile).ok());
                 const LeadTask other = LeadTaskOf(std::string(16, 'o'));
                 UNREFT_CHECK(store_.Put(kOrderFile, EncodeOrder(other.order)).ok());
                 UNREFT_CHECK(store_.Put(part, "of the other").ok());
               }).ok());
  EXPECT_EQ(store_.Get(part, 100).value_or("gone"), "of the other");
  // Its last word was lost, and the copy was completed with it.
  EXPECT_FALSE(follow([&] {
                 UNREFT_CHECK(store_.Put(part, "whole").ok());
                 UNREFT_CHECK(store_.Put(kRecordFile, "of all").ok());
               }).ok());
  EXPECT_EQ(store_.Get(part, 100).value_or("gone"), "whole");
  // Given up.
  EXPECT_FALSE(follow([&] { UNREFT_CHECK(store_.Put(part, "whole").ok()); }).ok());
  EXPECT_THAT(NamesIn(store_), Not(Contains(part)));
}

TEST_F(CopyRunTest, WhatCannotBeRemovedKeepsItsOrder) {
  on_progress_ = [this](uint64_t written, uint64_t) {
    if (written == 0) return true;
    store_.FailRemove(ReadyFile(NodeSlot{0}), absl::UnavailableError("busy"));
    return false;
  };
  LeadTask task = LeadTaskOf();
  task.nodes = {NodeSlot{0}};
  EXPECT_FALSE(LeadCopy(nodes_[0].segments(), store_, task, Pace(), on_progress_).ok());
  EXPECT_EQ(NamesIn(store_), (std::set<std::string>{kOrderFile, ReadyFile(NodeSlot{0})}));
}

TEST_F(CopyRunTest, ACopyThatWasRemovedMeanwhileIsNotCompleted) {
  ASSERT_TRUE(Run().lead.ok());
  for (const char* name : {kMetadataFile, kRecordFile, kValuesFile, kOrderFile}) {
    ASSERT_TRUE(store_.Remove(name).ok());
  }
  const absl::Status status = FinishCopy(store_, LeadTaskOf().order, {}).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(NamesIn(store_), Not(Contains(kMetadataFile)));
}

TEST_F(CopyRunTest, APartThatIsNotWholeIsNotCompleted) {
  ASSERT_TRUE(Run().lead.ok());
  ASSERT_TRUE(store_.Remove(kMetadataFile).ok());
  ASSERT_TRUE(store_.Remove(kRecordFile).ok());
  ASSERT_TRUE(store_.Remove(kValuesFile).ok());
  const std::string items = *store_.Get(ItemsFile(Rank{2}), uint64_t{1} << 30);
  ASSERT_TRUE(store_.Remove(ItemsFile(Rank{2})).ok());
  const auto finish = [&] { return FinishCopy(store_, LeadTaskOf().order, {}).status(); };
  EXPECT_THAT(std::string(finish().message()), AllOf(HasSubstr("rank 2"), HasSubstr("needed")));
  ASSERT_TRUE(store_.Put(ItemsFile(Rank{2}), items.substr(1)).ok());
  EXPECT_TRUE(absl::IsDataLoss(finish())) << finish();
  ASSERT_TRUE(store_.Remove(ItemsFile(Rank{2})).ok());
  ASSERT_TRUE(store_.Put(ItemsFile(Rank{2}), items).ok());
  store_.FlipByte(SlabFile(Rank{3}), 40);
  EXPECT_TRUE(absl::IsDataLoss(finish())) << finish();
  EXPECT_THAT(NamesIn(store_), Not(Contains(kMetadataFile)));
}

}  // namespace
}  // namespace unreft::durable
