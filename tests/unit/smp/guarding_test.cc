// The guardings of a group, over a simulated network and slabs that the test gives: what is encoded
// where, and who does it when a member is lost meanwhile (docs/protocol.md, rule 18).

#include "smp/protect/guarding.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/random.h"
#include "ec/code_cache.h"
#include "smp/job/cluster_records.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/reference_code.h"
#include "tests/fakes/sim_executor.h"
#include "tests/fakes/sim_transport.h"
#include "tests/fakes/sim_work_pool.h"
#include "tests/unit/format_testing.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Version kVersion{Timeline{1}, Step{9}};
constexpr uint32_t kBlockBytes = 64;

using Blocks = std::vector<std::vector<std::byte>>;

// A node of the group: its slab of one rank, its guard, and what it lets others read.
struct GroupNode {
  GroupNode(SimScheduler& scheduler, SimNetwork& network, uint32_t index, uint32_t count,
            TileShares shares)
      : executor(scheduler.NewExecutor("node")),
        pool(std::make_unique<SimWorkPool>(*executor)),
        transport(*network.NewTransport(*executor, Address(index))) {
    job.store_id = "0123456789abcdef";
    for (uint32_t i = 0; i < count; ++i) job.present[NodeSlot{i}].set_address(Address(i));
    tiles = std::make_unique<TilePool>(*executor, shares);
    peers = std::make_unique<Peers>(*executor, *transport, job, "job", NodeSlot{index}, RandomId{});
  }
  // kill -9.
  ~GroupNode() { executor->Kill(); }

  static std::string Address(uint32_t index) { return fmt::format("node{}", index); }

  std::unique_ptr<SimExecutor> executor;
  std::unique_ptr<SimWorkPool> pool;
  std::unique_ptr<Transport> transport;
  meta::JobState job;
  std::unique_ptr<Peers> peers;
  std::unique_ptr<TilePool> tiles;
  std::unique_ptr<PageBuffer> pages;
  Guard guard;
  std::unique_ptr<Guarding> guarding;  // null: hands nothing on
  std::optional<absl::Status> ended;

  bool gives = true;                    // blocks of its slab
  uint64_t hands_on = UINT64_MAX;       // so many parities
  std::set<uint32_t> lost_on_the_way;   // parities of which the first that is handed on gets lost
  uint64_t given = 0;                   // blocks of its slab
  std::optional<uint64_t> rotten;       // block of its slab, until somebody complains
  bool description_has_rotted = false;  // the same of what describes it
  uint64_t complaints = 0;
};

class GuardingTest : public ::testing::Test {
 protected:
  GuardingTest() {
    options_.block_bytes = kBlockBytes;
    options_.protect_window = 2;
    options_.read_retry = milliseconds(5);
  }
  ~GuardingTest() override { nodes_.clear(); }

  // `blocks[i]` of the i-th member.
  void Make(ec::CodeShape shape, std::vector<uint64_t> blocks) {
    shape_ = shape;
    Random random(7);
    for (uint32_t i = 0; i < shape.n(); ++i) {
      Blocks& slab = slabs_.emplace_back();
      for (uint64_t block = 0; block < blocks[i]; ++block) {
        for (std::byte& byte : slab.emplace_back(kBlockBytes)) byte = std::byte(random.Below(256));
      }
      nodes_.emplace_back();
    }
    for (uint32_t i = 0; i < shape.n(); ++i) StartNode(i);
  }

  // The version as the member has it encoded.
  std::shared_ptr<const CodedVersion> CodedFor(uint32_t index) {
    GroupView group{{}, shape_, index};
    std::vector<MemberSlab> members;
    for (uint32_t i = 0; i < shape_.n(); ++i) {
      group.slots.push_back(NodeSlot{i});
      RankSlab& slab = *members.emplace_back().add_slabs();
      slab.set_rank(i);
      slab.set_data_bytes(slabs_[i].size() * kBlockBytes);
    }
    return *CodedVersion::Make(kVersion, std::move(group), kBlockBytes, std::move(members), codes_);
  }

  void StartNode(uint32_t index) {
    nodes_[index].reset();
    nodes_[index] = std::make_unique<GroupNode>(scheduler_, network_, index, shape_.n(), shares_);
    InTurn(index, [&] { Serve(index); });
  }

  void Serve(uint32_t index) {
    GroupNode& node = *nodes_[index];
    node.peers->ServeReads(
        [this, index](NodeSlot, const std::string& body, uint64_t bytes, Guarding::ReadDone done) {
          ReadRequest request;
          UNREFT_CHECK(request.ParseFromString(body));
          if (request.kind() == ReadRequest::DATA)
            return GiveBlock(index, request, std::move(done));
          HandOn(*nodes_[index], request, bytes, std::move(done));
        });
    node.peers->Answer<MetaRequest, MetaReply>(
        "meta", [&node, index](NodeSlot, const MetaRequest& request, auto done) {
          node.complaints += request.is_suspect();
          if (request.is_suspect()) node.description_has_rotted = false;
          MetaReply reply;
          SlabDescription& slab = *reply.add_slabs();
          slab.set_rank(index);
          slab.set_world(1 << 10);
          slab.set_manifest(node.description_has_rotted ? "manifesT" : "manifest");
          slab.set_manifest_crc(Crc32c(std::as_bytes(std::span("manifest", 8))));
          done(std::move(reply));
        });
  }

  void GiveBlock(uint32_t index, const ReadRequest& request, Guarding::ReadDone done) {
    GroupNode& node = *nodes_[index];
    if (!node.gives) return done(absl::UnavailableError("not now"));
    ++node.given;
    if (request.is_suspect()) {
      ++node.complaints;
      node.rotten.reset();
    }
    std::span<std::byte> block = slabs_[index].at(request.first_block());
    ReadHeader header;
    header.add_crcs(Crc32c(block));
    if (node.rotten == request.first_block()) block = rot_;
    ReadSource source;
    source.header = header.SerializeAsString();
    source.parts.push_back(block);
    done(std::move(source));
  }

  static void HandOn(GroupNode& node, const ReadRequest& request, uint64_t bytes,
                     Guarding::ReadDone done) {
    if (node.guarding == nullptr || node.hands_on == 0) return done(absl::NotFoundError("nothing"));
    --node.hands_on;
    node.guarding->OnRead(request, bytes,
                          [&node, parity = request.parity(),
                           done = std::move(done)](absl::StatusOr<ReadSource> source) mutable {
                            if (node.lost_on_the_way.erase(parity) > 0)
                              source = absl::UnavailableError("lost");
                            done(std::move(source));
                          });
  }

  void Guard(uint32_t index) {
    GroupNode& node = *nodes_[index];
    const std::shared_ptr<const CodedVersion> coded = CodedFor(index);
    const uint64_t positions = coded->layout().positions();
    const GuardGeometry geometry =
        MakeGuardGeometry(0, kBlockBytes, 4096, shape_.m, shape_.k, positions);
    node.pages = std::make_unique<PageBuffer>(GuardSegmentBytes(geometry));
    node.guard.view = FormatGuard(node.pages->span(), geometry);
    node.guard.generation = Generation{1};
    GuardGrant grant;
    grant.generation = 1;
    grant.timeline = kVersion.timeline.value;
    grant.step = kVersion.step.value;
    grant.positions = positions;
    grant.sources = shape_.k;
    SetBodyCrc(grant);
    node.guard.view->header().grant = grant;
    node.guard.view->set_state(Generation{1}, GuardState::kFilling);
    InTurn(index, [&] {
      node.guarding = std::make_unique<Guarding>(
          Guarding::Seams{*node.executor, *node.pool, *node.peers, log_, *node.tiles}, options_,
          coded, node.guard, Guarding::Mode::kWithGroup,
          [&node](auto result) { node.ended = result.status(); });
      node.guarding->Start();
    });
  }
  void GuardAll() {
    for (uint32_t i = 0; i < shape_.n(); ++i) Guard(i);
  }

  void Lose(uint32_t index) { nodes_[index].reset(); }
  void TellLost(uint32_t index) {
    for (uint32_t i = 0; i < shape_.n(); ++i) {
      if (nodes_[i] == nullptr) continue;
      InTurn(i, [&] { nodes_[i]->guarding->DoWithout(NodeSlot{index}); });
    }
  }

  void InTurn(uint32_t index, absl::FunctionRef<void()> body) {
    bool done = false;
    nodes_[index]->executor->Deliver(Duration{}, [&] {
      body();
      done = true;
    });
    UNREFT_CHECK(scheduler_.RunUntil([&] { return done; }, 100000));
  }

  bool Complete(uint32_t index) const {
    return nodes_[index]->ended.has_value() && nodes_[index]->ended->ok();
  }

  // The node's guard is complete, and of the slabs' bytes by the slow code.
  void ExpectGuarded(uint32_t index) {
    ASSERT_TRUE(Complete(index)) << "node " << index;
    GroupNode& node = *nodes_[index];
    EXPECT_TRUE(VerifyGuard(*node.guard.view).ok());
    const std::shared_ptr<const CodedVersion> coded = CodedFor(index);
    const ec::StripeLayout& layout = coded->layout();
    const ec::ReferenceCode code(shape_);
    const std::vector<uint32_t> stripes = layout.ParityStripes(index);
    for (uint32_t parity = 0; parity < shape_.m; ++parity) {
      for (uint64_t position = 0; position < layout.positions(); ++position) {
        std::vector<std::span<const std::byte>> data;
        for (uint32_t source = 0; source < shape_.k; ++source) {
          const auto block = layout.BlockAt(stripes[parity], source, position);
          const Blocks& slab = slabs_[layout.MemberOf(stripes[parity], source)];
          data.push_back(block ? slab[*block] : std::span<const std::byte>());
        }
        Blocks expected(shape_.m, std::vector<std::byte>(kBlockBytes));
        std::vector<std::span<std::byte>> targets(expected.begin(), expected.end());
        code.Encode(data, targets);
        ASSERT_TRUE(std::ranges::equal(node.guard.view->block(parity, position), expected[parity]))
            << "node " << index << ", parity " << parity << ", position " << position;
      }
    }
  }

  SimScheduler scheduler_{1};
  SimNetwork network_{scheduler_};
  CaptureLogSink sink_;
  Log log_{sink_};
  NodeOptions options_;
  ec::CodeShape shape_;
  std::vector<Blocks> slabs_;
  TileShares shares_{4, 0};
  ec::CodeCache codes_;
  std::vector<std::byte> rot_ = std::vector<std::byte>(kBlockBytes);
  std::vector<std::unique_ptr<GroupNode>> nodes_;
};

TEST_F(GuardingTest, EveryGuardHoldsTheParitiesOfAllSlabs) {
  for (const ec::CodeShape shape :
       {ec::CodeShape{2, 1}, ec::CodeShape{2, 2}, ec::CodeShape{2, 3}}) {
    slabs_.clear();
    nodes_.clear();
    Make(shape, {7, 0, 12, 3, 9});
    GuardAll();
    scheduler_.RunFor(seconds(2));
    for (uint32_t i = 0; i < shape.n(); ++i) ExpectGuarded(i);
  }
}

TEST_F(GuardingTest, EachBlockIsReadOnce) {
  Make({2, 3}, {10, 10, 10, 10, 10});
  GuardAll();
  scheduler_.RunFor(seconds(2));
  for (const auto& node : nodes_) EXPECT_EQ(node->given, 10U);
}

TEST_F(GuardingTest, TheNextHolderEncodesWhatALostAggregatorHadNotHandedOn) {
  Make({2, 2}, {20, 20, 20, 20});
  nodes_[0]->hands_on = 3;
  GuardAll();
  scheduler_.RunFor(seconds(2));
  EXPECT_FALSE(Complete(1));
  Lose(0);
  scheduler_.RunFor(seconds(1));
  EXPECT_FALSE(Complete(1)) << "it is not known to be lost yet";
  const uint64_t before = nodes_[2]->given + nodes_[3]->given;
  TellLost(0);
  scheduler_.RunFor(seconds(2));
  for (const uint32_t i : {1, 2, 3}) ExpectGuarded(i);
  // Of 10 positions 3 had come; each of the others takes both data blocks of the stripe.
  EXPECT_EQ(nodes_[2]->given + nodes_[3]->given - before, 14U);
}

TEST_F(GuardingTest, AllHoldersOfALostAggregatorGetTheirParities) {
  Make({2, 3}, {20, 20, 20, 20, 20});
  nodes_[0]->hands_on = 3;
  GuardAll();
  scheduler_.RunFor(seconds(2));
  EXPECT_FALSE(Complete(1) && Complete(2));
  Lose(0);
  TellLost(0);
  scheduler_.RunFor(seconds(2));
  for (const uint32_t i : {1, 2, 3, 4}) ExpectGuarded(i);
}

TEST_F(GuardingTest, AnAggregatorKeepsNothingForALostHolder) {
  options_.read_retry = seconds(1);  // so that patience is not what helps
  Make({2, 2}, {20, 20, 20, 20});
  for (const uint32_t i : {0, 2, 3}) Guard(i);
  scheduler_.RunFor(seconds(2));
  EXPECT_FALSE(Complete(0)) << "node 1 has not asked for its parities yet";
  Lose(1);
  TellLost(1);
  scheduler_.RunFor(seconds(2));
  for (const uint32_t i : {0, 2, 3}) ExpectGuarded(i);
}

// The next position waited for the tiles of those that were kept, and counted as being encoded.
TEST_F(GuardingTest, WhoNeverAsksIsNotWaitedForWithTheLastTiles) {
  shares_.encoding = 1;
  Make({2, 2}, {20, 20, 20, 20});
  for (const uint32_t i : {0, 2, 3}) Guard(i);
  scheduler_.RunFor(seconds(2));
  ExpectGuarded(0);
}

TEST_F(GuardingTest, AnAggregatorThatStartsAgainServesThoseWhoHaveItsFirstPositions) {
  Make({2, 2}, {20, 20, 20, 20});
  nodes_[0]->hands_on = 5;
  GuardAll();
  scheduler_.RunFor(seconds(2));
  EXPECT_FALSE(Complete(1));
  StartNode(0);
  Guard(0);
  scheduler_.RunFor(seconds(2));
  for (uint32_t i = 0; i < 4; ++i) ExpectGuarded(i);
}

TEST_F(GuardingTest, AHolderThatStartsAgainIsHandedAllOnceMore) {
  Make({2, 2}, {20, 20, 20, 20});
  GuardAll();
  scheduler_.RunFor(seconds(2));
  StartNode(1);
  Guard(1);
  scheduler_.RunFor(seconds(2));
  for (uint32_t i = 0; i < 4; ++i) ExpectGuarded(i);
}

TEST_F(GuardingTest, WhatIsEncodedAgainIsForAllWhoWait) {
  Make({2, 3}, {20, 20, 20, 20, 20});
  nodes_[0]->lost_on_the_way = {1, 2};
  GuardAll();
  scheduler_.RunFor(seconds(2));  // far below the timeout of a read
  for (uint32_t i = 0; i < 5; ++i) ExpectGuarded(i);
  // Stripe 0 has members 3 and 4 as sources: one position of it was encoded twice, not three times.
  EXPECT_EQ(nodes_[3]->given + nodes_[4]->given, 42U);
}

TEST_F(GuardingTest, WhatHasLandedIsNotReadAgain) {
  Make({2, 2}, {20, 20, 20, 20});
  nodes_[3]->gives = false;
  GuardAll();
  scheduler_.RunFor(seconds(2));
  EXPECT_LT(nodes_[2]->given, 20U);
  nodes_[3]->gives = true;
  scheduler_.RunFor(seconds(2));
  for (uint32_t i = 0; i < 4; ++i) ExpectGuarded(i);
  for (const auto& node : nodes_) EXPECT_EQ(node->given, 20U);
}

// Only the reader sees it: the group read the block again and again, and nothing was committed.
TEST_F(GuardingTest, AMemberIsToldThatItsBlockHasRottedAndOthersAreNotReadAgain) {
  Make({2, 2}, {20, 20, 20, 20});
  nodes_[3]->rotten = 5;
  GuardAll();
  scheduler_.RunFor(seconds(2));
  for (uint32_t i = 0; i < 4; ++i) ExpectGuarded(i);
  EXPECT_EQ(nodes_[3]->complaints, 1U);
  EXPECT_EQ(nodes_[3]->given, 21U);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(nodes_[i]->complaints, 0U) << i;
    EXPECT_EQ(nodes_[i]->given, 20U) << i;
  }
}

TEST_F(GuardingTest, AMemberIsToldThatWhatDescribesItsSlabHasRotted) {
  Make({2, 2}, {20, 20, 20, 20});
  nodes_[1]->description_has_rotted = true;
  GuardAll();
  scheduler_.RunFor(seconds(2));
  for (uint32_t i = 0; i < 4; ++i) ExpectGuarded(i);
  EXPECT_GE(nodes_[1]->complaints, 1U);
}

TEST_F(GuardingTest, CancelledItEndsOnce) {
  Make({2, 2}, {20, 20, 20, 20});
  nodes_[3]->gives = false;
  GuardAll();
  scheduler_.RunFor(milliseconds(50));
  InTurn(0, [&] { nodes_[0]->guarding->Cancel(); });
  scheduler_.RunFor(seconds(1));
  ASSERT_TRUE(nodes_[0]->ended.has_value());
  EXPECT_TRUE(absl::IsCancelled(*nodes_[0]->ended));
}

// A spare that took a slot without ranks had another coding than who went on, and each waited for
// parities of its own.
TEST(CodingTest, IsOfTheMemoriesThatHaveSlabs) {
  Group group;
  group.set_k(1);
  group.add_slots(0);
  group.add_slots(1);
  google::protobuf::RepeatedPtrField<MemberSlab> members;
  MemberSlab& with = *members.Add();
  with.set_incarnation("a");
  with.add_slabs()->set_rank(0);
  MemberSlab& without = *members.Add();
  without.set_incarnation("b");
  const uint64_t coding = CodingOf(group, members);
  without.set_incarnation("c");
  EXPECT_EQ(CodingOf(group, members), coding);
  with.set_incarnation("c");
  EXPECT_NE(CodingOf(group, members), coding);
}

}  // namespace
}  // namespace unreft::smp
