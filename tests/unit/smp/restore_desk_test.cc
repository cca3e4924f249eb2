// What a node does after its slabs of a decided version are whole: its share of the protection.
//
// RS(2,1): node 0 is new in its slot and has no rank; the nodes 1 and 2 have the slabs of the ranks
// 0 and 1, and the group's record as far as the test says.

#include "smp/restore/restore_desk.h"

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "layout/tensor_table.h"
#include "smp/job/cluster_records.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/group_fixture.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
      server_ = std::make_unique<SlabServer>(*state_, *own_peers_);
      protector_ = std::make_unique<Protector>(*state_, *own_peers_, *server_, job_, [] {});
      desk_ = std::make_unique<RestoreDesk>(*state_);
      desk_->Join({*own_peers_, job_, *server_, protector_.get(), [] {}});
    });
  }
  ~RestoreDeskTest() override {
    InTurn([&] {
      for (auto& [rank, session] : state_->sessions) desk_->OnSessionEnded(*session);
      state_->sessions.clear();
      desk_.reset();
      protector_.reset();
    });
  }

  void Serve(NodeSlot slot, Other& other, Peers& peers) {
    peers.Answer<MetaRequest, MetaReply>("meta", [this, slot, &other](auto, auto, auto done) {
      if (!other.describes) return done(absl::UnavailableError("not now"));
      MetaReply reply;
      *reply.add_slabs() =
          DescriptionOf(Rank{slot.value - 1}, 2, TensorOf(slot), data_[slot.value]);
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
    decision.asked = asked_;
    InTurn([&] { desk_->OnDecision(decision); });
  }
  RankSession& Connect(Rank rank) {
    Hello hello;
    hello.rank = rank;
    hello.life = table_.Start();
    auto& session = state_->sessions[rank];
    session = std::make_unique<RankSession>(hello, segments_);
    session->timeline = Timeline{2};
    session->Attach(&channels_[rank]);
    return *session;
  }
  // A trainer here, of so many, asks what it restores.
  void Ask(Rank rank, uint64_t world, bool any_world) {
    InTurn([&] {
      Hello hello;
      hello.rank = rank;
      hello.world = world;
      hello.life = table_.Start();
      auto& session = state_->sessions[rank];
      session = std::make_unique<RankSession>(hello, segments_);
      session->Attach(&channels_[rank]);
      session->restore_request = 7;
      session->takes_any_world = any_world;
      asked_[rank] = {rank, hello.life, 7};
    });
  }
  Decision AnswerTo(Rank rank) {
    const auto answers = channels_[rank].Told<Decision>(FrameType::kDecision);
    EXPECT_EQ(answers.size(), 1U);
    return answers.empty() ? Decision() : answers.back();
  }
  Extras ExtrasFor(Rank rank, Rank of) {
    InTurn([&] { desk_->OnExtrasRequest(*state_->SessionOf(rank), {8, of}); });
    const auto answers = channels_[rank].Told<Extras>(FrameType::kExtras);
    EXPECT_FALSE(answers.empty());
    return answers.empty() ? Extras() : answers.back();
  }
  // A trainer here asks for a tensor that is on node 1.
  void ReadStaged(Rank rank = Rank{5}) {
    InTurn([&] {
      RankSession* session = state_->SessionOf(rank);
      if (session == nullptr) session = &Connect(rank);
      const TensorSpec tensor = TensorOf(NodeSlot{1});
      desk_->OnPlanRequest(*session, {1, ToWire({&tensor, 1}), reads_pages_});
    });
  }
  std::vector<Plan> PlansOf(Rank rank) { return channels_[rank].Told<Plan>(FrameType::kPlan); }
  // The blocks that were sent and not answered before, each copied and answered now.
  uint64_t CopyStaged(Rank rank) {
    uint64_t blocks = 0;
    for (const Staged& staged : channels_[rank].Told<Staged>(FrameType::kStaged)) {
      EXPECT_TRUE(staged.status.ToStatus().ok()) << staged.status.ToStatus();
      if (staged.bytes == 0) continue;
      const auto segment = segments_.Open("/unreft.job.0.staging", Access::kReadOnly);
      EXPECT_TRUE(segment.ok()) << segment.status();
      EXPECT_EQ(Crc32c((*segment)->bytes().subspan(staged.offset, staged.bytes)), staged.crc);
      InTurn([&] {
        desk_->OnStagedDone(*state_->SessionOf(rank),
                            {staged.request, staged.offset, absl::OkStatus()});
      });
      ++blocks;
    }
    channels_[rank].sent.clear();
    return blocks;
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

  bool reads_pages_ = true;
  std::map<Rank, Asker> asked_;  // of the next decision
  GuardRecord record_of_group_;
  std::array<std::vector<std::byte>, kNodes> data_;
  std::map<NodeSlot, Other> others_;
  std::map<Rank, RecordingChannel> channels_;
  std::unique_ptr<SlabServer> server_;
  std::unique_ptr<Protector> protector_;
  std::unique_ptr<RestoreDesk> desk_;
};

// --- what another number of ranks has saved ---

TEST_F(RestoreDeskTest, InAnotherWorldEveryTensorIsToldWhole) {
  Ask(Rank{0}, 3, true);
  Decide(Timeline{2});
  Settle(milliseconds(100));
  const Decision answer = AnswerTo(Rank{0});
  EXPECT_EQ(answer.kind, DecisionKind::kRestored);
  EXPECT_EQ(answer.source_world, 2U);
  ASSERT_EQ(answer.tensors.size(), 2U);
  for (const WireTensor& tensor : answer.tensors) {
    EXPECT_EQ(tensor.spec.extent, tensor.spec.global_shape);
  }
  EXPECT_FALSE(answer.extras.has_remote) << "those of the rank that had its number";
}

TEST_F(RestoreDeskTest, InTheSameWorldEachHasWhatItSaved) {
  Ask(Rank{1}, 2, true);
  Decide(Timeline{2});
  Settle(milliseconds(100));
  const Decision answer = AnswerTo(Rank{1});
  EXPECT_EQ(answer.kind, DecisionKind::kRestored);
  EXPECT_EQ(answer.source_world, 2U);
  EXPECT_TRUE(answer.extras.has_remote);
}

// A program that knows of no other world would take the state for one without extras.
TEST_F(RestoreDeskTest, WhoTakesNoOtherWorldIsToldBothNumbers) {
  Ask(Rank{0}, 3, false);
  Ask(Rank{1}, 3, true);
  Decide(Timeline{2});
  Settle(milliseconds(100));
  const Decision answer = AnswerTo(Rank{0});
  EXPECT_EQ(answer.kind, DecisionKind::kFailed);
  EXPECT_THAT(answer.status.message, AllOf(HasSubstr("saved by 2 ranks"), HasSubstr("is one of 3"),
                                           HasSubstr("any_world")));
  EXPECT_EQ(AnswerTo(Rank{1}).kind, DecisionKind::kRestored);
}

TEST_F(RestoreDeskTest, TheExtrasOfEachRankThatSavedItAreGiven) {
  Ask(Rank{0}, 3, true);
  Decide(Timeline{2});
  Settle(milliseconds(100));
  for (const Rank of : {Rank{0}, Rank{1}}) {
    const Extras extras = ExtrasFor(Rank{0}, of);
    EXPECT_TRUE(extras.status.ToStatus().ok()) << extras.status.message;
    EXPECT_TRUE(extras.extras.has_remote);
    EXPECT_EQ(extras.request, 8U);
  }
  const Extras beyond = ExtrasFor(Rank{0}, Rank{2});
  EXPECT_TRUE(absl::IsOutOfRange(beyond.status.ToStatus()));
  EXPECT_THAT(beyond.status.message, HasSubstr("was saved by 2 ranks"));
}

// There is memory for the slots of one number of ranks, and these are about to register.
TEST_F(RestoreDeskTest, OnlyAsManyRanksAsSavedItHaveWhatIsLostRebuilt) {
  Ask(Rank{0}, 1, true);
  JobDecision decision;
  decision.kind = DecisionKind::kRestored;
  decision.version = kVersion;
  decision.timeline = Timeline{2};
  decision.holders = {{NodeSlot{0}, {Rank{0}}, true}, {NodeSlot{2}, {Rank{1}}, false}};
  decision.asked = asked_;
  InTurn([&] { desk_->OnDecision(decision); });
  Settle(milliseconds(500));
  EXPECT_EQ(AnswerTo(Rank{0}).kind, DecisionKind::kRestored);
  InTurn([&] { EXPECT_TRUE(state_->slots->All().empty()); });
  asked_[Rank{1}] = asked_[Rank{0}];
  decision.asked = asked_;
  decision.timeline = Timeline{3};
  InTurn([&] {
    desk_ = std::make_unique<RestoreDesk>(*state_);
    desk_->Join({*own_peers_, job_, *server_, protector_.get(), [] {}});
    desk_->OnDecision(decision);
  });
  Settle(milliseconds(500));
  InTurn([&] { EXPECT_FALSE(state_->slots->All().empty()); });
}

TEST_F(RestoreDeskTest, WhoRestoresNothingGetsNoExtras) {
  Ask(Rank{0}, 3, true);
  EXPECT_TRUE(absl::IsFailedPrecondition(ExtrasFor(Rank{0}, Rank{0}).status.ToStatus()));
}

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
}

// --- the bytes of other nodes ---

TEST_F(RestoreDeskTest, RanksShareOneSegmentOfABlockForEach) {
  state_->options.restore_staging_bytes = 0;
  Decide(Timeline{2});
  Settle();
  InTurn([&] {
    Connect(Rank{5});
    Connect(Rank{6});
  });
  ReadStaged(Rank{5});
  ReadStaged(Rank{6});
  std::map<Rank, uint64_t> copied;
  for (int turn = 0; turn < 20; ++turn) {
    Settle();
    EXPECT_LE(state_->memory->use(SegmentKind::kStaging).bytes, 2 * kBlockBytes);
    for (const Rank rank : {Rank{5}, Rank{6}}) {
      if (turn == 0) {
        ASSERT_EQ(PlansOf(rank).size(), 1U);
        EXPECT_EQ(PlansOf(rank)[0].staging_bytes, 2 * kBlockBytes);
        EXPECT_EQ(PlansOf(rank)[0].staging_segment, "/unreft.job.0.staging");
      }
      copied[rank] += CopyStaged(rank);
    }
  }
  EXPECT_EQ(copied[Rank{5}], kBlocks);
  EXPECT_EQ(copied[Rank{6}], kBlocks);
}

// Whatever a trainer asks for, the node's thread computes no plan; and a rank has one at a time.
TEST_F(RestoreDeskTest, APlanIsComputedOnThePoolAndTheLastOneAskedForIsTold) {
  Decide(Timeline{2});
  Settle();
  InTurn([&] {
    RankSession& session = Connect(Rank{5});
    const TensorSpec tensor = TensorOf(NodeSlot{1});
    const size_t before = pool_.pending();
    for (const uint64_t request : {1, 2, 3}) {
      desk_->OnPlanRequest(session, {request, ToWire({&tensor, 1})});
    }
    EXPECT_EQ(pool_.pending(), before + 1);
    EXPECT_TRUE(PlansOf(Rank{5}).empty());
  });
  Settle(seconds(1));
  ASSERT_EQ(PlansOf(Rank{5}).size(), 1U);
  EXPECT_EQ(PlansOf(Rank{5})[0].request, 3U);
  EXPECT_TRUE(PlansOf(Rank{5})[0].status.ToStatus().ok());
}

TEST_F(RestoreDeskTest, AllPiecesAreNamedBeforeThePlanAndBlocksByTheirNumbers) {
  Decide(Timeline{2});
  Settle();
  ReadStaged();
  Settle();
  const auto& sent = channels_[Rank{5}].sent;
  ASSERT_GE(sent.size(), 3U);
  EXPECT_EQ(sent[0].type, static_cast<uint16_t>(FrameType::kPlanPage));
  EXPECT_EQ(sent[1].type, static_cast<uint16_t>(FrameType::kPlan));
  const PlanPage page = channels_[Rank{5}].Told<PlanPage>(FrameType::kPlanPage).at(0);
  EXPECT_THAT(page.pieces, ElementsAre(PlanPiece{.bytes = kBlocks * kBlockBytes}));
  const Plan plan = PlansOf(Rank{5}).at(0);
  EXPECT_EQ(plan.paged_pieces, 1U);
  ASSERT_EQ(plan.sources.size(), 1U);
  EXPECT_EQ(plan.sources[0].rank, Rank{0});
  EXPECT_TRUE(plan.sources[0].is_staged());
  EXPECT_EQ(plan.block_bytes, kBlockBytes);
  std::set<uint64_t> blocks;
  for (int turn = 0; turn < 20; ++turn) {
    for (const Staged& staged : channels_[Rank{5}].Told<Staged>(FrameType::kStaged)) {
      EXPECT_TRUE(staged.pieces.empty());
      if (staged.bytes > 0) EXPECT_TRUE(blocks.insert(staged.block).second);
    }
    CopyStaged(Rank{5});
    Settle();
  }
  EXPECT_THAT(blocks, ElementsAre(0, 1, 2, 3));
}

// Its trainers restore while the daemons are upgraded one after the other.
TEST_F(RestoreDeskTest, ALibraryOfAnEarlierReleaseIsToldEachRowWithItsBlock) {
  Decide(Timeline{2});
  Settle();
  reads_pages_ = false;
  ReadStaged();
  Settle();
  EXPECT_TRUE(channels_[Rank{5}].Told<PlanPage>(FrameType::kPlanPage).empty());
  const Plan plan = PlansOf(Rank{5}).at(0);
  EXPECT_TRUE(plan.sources.empty());
  EXPECT_EQ(plan.staged_bytes, kBlocks * kBlockBytes);
  std::set<uint64_t> written;
  for (int turn = 0; turn < 20; ++turn) {
    for (const Staged& staged : channels_[Rank{5}].Told<Staged>(FrameType::kStaged)) {
      if (staged.bytes == 0) continue;
      ASSERT_EQ(staged.pieces.size(), 1U);
      EXPECT_EQ(staged.pieces[0].source_offset, 0U);
      EXPECT_EQ(staged.pieces[0].bytes, kBlockBytes);
      EXPECT_TRUE(written.insert(staged.pieces[0].target_offset).second);
    }
    CopyStaged(Rank{5});
    Settle();
  }
  EXPECT_EQ(written.size(), kBlocks);
}

TEST_F(RestoreDeskTest, APlanThatIsTooLargeIsRefusedAtOnceWithTheNumber) {
  Decide(Timeline{2});
  Settle();
  InTurn([&] {
    RankSession& session = Connect(Rank{5});
    std::vector<TensorSpec> tensors;
    for (uint64_t i = 0; i <= layout::kShardsMax; ++i) {
      tensors.push_back(Spec("w", {1 << 20}, {i}, {1}));
    }
    desk_->OnPlanRequest(session, {1, ToWire(tensors)});
  });
  Settle(milliseconds(200));  // no memory is waited for
  ASSERT_EQ(PlansOf(Rank{5}).size(), 1U);
  const absl::Status status = PlansOf(Rank{5})[0].status.ToStatus();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("262145 shards, at most 262144"));
}

TEST_F(RestoreDeskTest, APlanWaitsForTheMemoryOfItsStaging) {
  const uint64_t bytes_max = host_.bytes_max();
  Decide(Timeline{2});
  Settle();
  host_.set_bytes_max(host_.bytes_used());
  ReadStaged();
  Settle(seconds(1));
  EXPECT_TRUE(PlansOf(Rank{5}).empty());
  host_.set_bytes_max(bytes_max);
  Settle(seconds(2));
  ASSERT_EQ(PlansOf(Rank{5}).size(), 1U);
  EXPECT_TRUE(PlansOf(Rank{5})[0].status.ToStatus().ok());
  EXPECT_EQ(PlansOf(Rank{5})[0].staged_bytes, kBlocks * kBlockBytes);
}

TEST_F(RestoreDeskTest, APlanWithoutMemoryForItsStagingEndsWithTheNumbers) {
  Decide(Timeline{2});
  Settle();
  host_.set_bytes_max(host_.bytes_used());
  ReadStaged();
  Settle(2 * options_.read_timeout);
  ASSERT_EQ(PlansOf(Rank{5}).size(), 1U);
  const absl::Status status = PlansOf(Rank{5})[0].status.ToStatus();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the staging of 256 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes of shared memory needed"));
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
