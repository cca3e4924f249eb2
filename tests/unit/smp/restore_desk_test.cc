// What a node does after its slabs of a decided version are whole: its share of the protection.
//
// RS(2,1): node 0 is new in its slot and has no rank; the nodes 1 and 2 have the slabs of the ranks
// 0 and 1, and the group's record as far as the test says.

#include "smp/restore_desk.h"

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "smp/cluster_records.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/group_fixture.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kNodes = 3;
constexpr uint64_t kBlocks = 4;

class RestoreDeskTest : public GroupFixture {
 protected:
  using RecordDone = absl::AnyInvocable<void(absl::StatusOr<GuardRecord>)>;
  struct Other {
    bool describes = true;  // its slabs
    bool gives = true;      // its blocks
    std::function<void(RecordDone)> on_record;
    std::vector<absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>> waiting;
  };

  RestoreDeskTest() : GroupFixture(2, 1) {
    options_.slots_per_rank = 2;
    options_.read_retry = milliseconds(50);
    options_.read_timeout = seconds(2);
    *record_of_group_.mutable_group() = group();
    Random random(7);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      MemberSlab& member = *record_of_group_.add_members();
      member.set_incarnation(fmt::format("incarnation {}", slot));
      if (slot == 0) continue;
      RankSlab& slab = *member.add_slabs();
      slab.set_rank(slot - 1);
      slab.set_data_bytes(kBlocks * kBlockBytes);
      data_[slot] = RandomBytes(random, kBlocks * kBlockBytes);
      Other& other = others_[NodeSlot{slot}];
      other.on_record = [this](RecordDone done) { done(GuardRecord(record_of_group_)); };
      StartOther(NodeSlot{slot},
                 [this, slot, &other](Peers& peers) { Serve(NodeSlot{slot}, other, peers); });
    }
    StartOwn();
    InTurn([&] {
      state_->record->SetCommitted(kVersion, 2);
      protector_ = std::make_unique<Protector>(*state_, *own_peers_, job_, [] {});
      desk_ = std::make_unique<RestoreDesk>(*state_);
      desk_->Join({*own_peers_, job_, protector_.get(), [] {}});
    });
  }
  ~RestoreDeskTest() override {
    InTurn([&] {
      desk_.reset();
      protector_.reset();
    });
  }

  void Serve(NodeSlot slot, Other& other, Peers& peers) {
    peers.Answer<MetaRequest, MetaReply>("meta", [this, slot, &other](auto, auto, auto done) {
      if (!other.describes) return done(absl::UnavailableError("not now"));
      MetaReply reply;
      *reply.add_slabs() = MetaOf(Rank{slot.value - 1}, 2, TensorOf(slot), data_[slot.value]);
      done(std::move(reply));
    });
    peers.Answer<MetaRequest, GuardRecord>(
        "record", [&other](auto, auto, auto done) { other.on_record(std::move(done)); });
    peers.ServeReads([this, slot, &other](auto, const std::string& body, auto, auto done) {
      ReadRequest request;
      UNREFT_CHECK(request.ParseFromString(body));
      if (!other.gives) return other.waiting.push_back(std::move(done));
      done(SourceOf(
          std::span(data_[slot.value]).subspan(request.first_block() * kBlockBytes, kBlockBytes)));
    });
  }
  static TensorSpec TensorOf(NodeSlot slot) {
    return Whole(fmt::format("w{}", slot), {kBlocks * kBlockBytes / 4});
  }

  void Decide(Timeline timeline, bool is_own_lost = false) {
    JobDecision decision;
    decision.kind = DecisionKind::kRestored;
    decision.version = kVersion;
    decision.timeline = timeline;
    decision.holders = {{NodeSlot{1}, {Rank{0}}, false}, {NodeSlot{2}, {Rank{1}}, false}};
    if (is_own_lost) decision.holders.push_back({NodeSlot{0}, {}, true});
    InTurn([&] { desk_->OnDecision(decision); });
  }
  // A trainer here asks for a tensor that is on node 1.
  void ReadStaged() {
    InTurn([&] {
      Hello hello;
      hello.rank = Rank{5};
      hello.life = table_.Start();
      auto& session = state_->sessions[Rank{5}];
      session = std::make_unique<RankSession>(hello, segments_);
      session->timeline = Timeline{2};
      const TensorSpec tensor = TensorOf(NodeSlot{1});
      desk_->OnPlanRequest(*session, {1, ToWire({&tensor, 1})});
    });
  }
  // The coding that this node's guard of the version is of, if it has one.
  std::optional<uint64_t> OwnCoding() {
    std::optional<uint64_t> coding;
    InTurn([&] {
      if (const auto record = protector_->RecordOf(kVersion)) {
        coding = CodingOf(record->group(), record->members());
      }
    });
    return coding;
  }
  uint64_t GroupCoding() const {
    return CodingOf(record_of_group_.group(), record_of_group_.members());
  }

  GuardRecord record_of_group_;
  std::array<std::vector<std::byte>, kNodes> data_;
  std::map<NodeSlot, Other> others_;
  std::unique_ptr<Protector> protector_;
  std::unique_ptr<RestoreDesk> desk_;
};

TEST_F(RestoreDeskTest, AFreshNodeMakesItsShareAnewFromTheGroupsRecord) {
  Decide(Timeline{2});
  Settle(seconds(1));
  EXPECT_EQ(OwnCoding(), GroupCoding());
}

// The answer to the first restore's question was taken for the second's, whose catalog knew of one
// slab of two: a guard of that was made, and the right one was not.
TEST_F(RestoreDeskTest, AnAnswerToASupersededRestoreTellsNothingOfTheNext) {
  RecordDone answer;
  for (auto& [slot, other] : others_) {
    other.on_record = [&](RecordDone done) { answer = std::move(done); };
    other.gives = false;
  }
  Decide(Timeline{2});
  ASSERT_TRUE(scheduler_.RunUntil([&] { return answer != nullptr; }, 100000));
  ReadStaged();
  ASSERT_TRUE(scheduler_.RunUntil([&] { return !others_[NodeSlot{1}].waiting.empty(); }, 100000));
  others_[NodeSlot{2}].describes = false;
  Decide(Timeline{3}, true);
  Settle(milliseconds(10));
  answer(absl::NotFoundError("it has no guard"));
  for (auto& [slot, other] : others_) {
    other.on_record = [this](RecordDone done) { done(GuardRecord(record_of_group_)); };
    other.gives = true;
  }
  Settle(milliseconds(500));
  EXPECT_EQ(OwnCoding(), std::nullopt);
  others_[NodeSlot{2}].describes = true;
  Settle(seconds(2));
  EXPECT_EQ(OwnCoding(), GroupCoding());
}

// It was given the first one's timeline again, in which the rank had captured: two trainings had
// versions of one name.
TEST_F(RestoreDeskTest, ATrainersSecondRestoreIsDecidedAnewAndTheFirstAskedAgainIsNot) {
  RecordingChannel channel;
  RecordingCoordinator* coordinator = nullptr;
  Hello hello;
  hello.world = 1;
  hello.attempt = Attempt{1};
  hello.life = table_.Start();
  const auto ask = [&](uint64_t request) {
    InTurn([&] { desk_->OnRestoreRequest(*state_->sessions.at(Rank{0}), {.request = request}); });
  };
  InTurn([&] {
    auto recording = std::make_unique<RecordingCoordinator>();
    coordinator = recording.get();
    state_->coordinator = std::move(recording);
    state_->sessions[Rank{0}] = std::make_unique<RankSession>(hello, segments_);
    state_->sessions[Rank{0}]->Attach(&channel);
  });
  ask(7);
  ASSERT_EQ(coordinator->asked, 1);
  JobDecision decision;
  decision.kind = DecisionKind::kFresh;
  decision.attempt = Attempt{1};
  decision.timeline = Timeline{2};
  decision.asked[Rank{0}] = {Rank{0}, hello.life, 7};
  InTurn([&] { desk_->OnDecision(decision); });
  ask(7);
  EXPECT_EQ(coordinator->asked, 1);
  EXPECT_EQ(channel.Told<Decision>(FrameType::kDecision).size(), 2U);
  InTurn([&] { state_->record->SetCaptureBegan(); });
  ask(8);
  EXPECT_EQ(coordinator->asked, 2);
  EXPECT_EQ(channel.Told<Decision>(FrameType::kDecision).size(), 2U);
  InTurn([&] { state_->sessions.clear(); });
}

// It was told to the log, and nothing was tried again.
TEST_F(RestoreDeskTest, ARecordThatNobodyTellsInTimeIsAskedForAgain) {
  for (auto& [slot, other] : others_) {
    other.on_record = [](RecordDone done) { done(absl::UnavailableError("it starts")); };
  }
  Decide(Timeline{2});
  Settle(2 * options_.read_timeout);
  EXPECT_EQ(OwnCoding(), std::nullopt);
  EXPECT_GE(log_lines_.Count("its protection is not made anew"), 1U);
  for (auto& [slot, other] : others_) {
    other.on_record = [this](RecordDone done) { done(GuardRecord(record_of_group_)); };
  }
  Settle(2 * options_.read_timeout);
  EXPECT_EQ(OwnCoding(), GroupCoding());
}

}  // namespace
}  // namespace unreft::smp
