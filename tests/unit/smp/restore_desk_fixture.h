// A RestoreDesk of a group RS(2,1): node 0 is new in its slot and has no rank; the nodes 1 and 2
// have the slabs of the ranks 0 and 1, and the group's record as far as the test says.
#pragma once

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layout/tensor_table.h"
#include "smp/job/cluster_records.h"
#include "smp/restore/restore_desk.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/group_fixture.h"
#include "tests/unit/smp/node_state_fixture.h"

namespace unreft::smp {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr uint64_t kNodesOfGroup = 3;
inline constexpr uint64_t kBlocks = 4;

class RestoreDeskFixture : public GroupFixture {
 protected:
  using RecordDone = absl::AnyInvocable<void(absl::StatusOr<GuardRecord>)>;
  struct Other {
    bool describes = true;  // its slabs
    bool gives = true;      // its blocks
    uint64_t given = 0;
    std::function<void(RecordDone)> on_record;
    std::vector<absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>> waiting;
  };

  RestoreDeskFixture() : GroupFixture(2, 1) {
    options_.slots_per_rank = 2;
    options_.read_retry = milliseconds(50);
    options_.read_timeout = seconds(2);
    *record_of_group_.mutable_group() = group();
    Random random(7);
    for (uint64_t slot = 0; slot < kNodesOfGroup; ++slot) {
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
  ~RestoreDeskFixture() override {
    InTurn([&] {
      for (auto& [rank, session] : state_->sessions) {
        session->restore_request.reset();  // there is no coordinator to be told
        desk_->OnSessionEnded(*session);
      }
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
      ++other.given;
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
    decision.durable_copy = durable_copy_;
    InTurn([&] { desk_->OnDecision(decision); });
  }
  RankSession& Connect(Rank rank, uint64_t world = 0) {
    Hello hello;
    hello.rank = rank;
    hello.world = world;
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
      RankSession& session = Connect(rank, world);
      session.timeline = Timeline{};
      session.restore_request = 7;
      session.takes_any_world = any_world;
      asked_[rank] = {rank, session.life(), 7};
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
  std::string durable_copy_;     // the same
  GuardRecord record_of_group_;
  std::array<std::vector<std::byte>, kNodesOfGroup> data_;
  std::map<NodeSlot, Other> others_;
  std::map<Rank, RecordingChannel> channels_;
  std::unique_ptr<SlabServer> server_;
  std::unique_ptr<Protector> protector_;
  std::unique_ptr<RestoreDesk> desk_;
};

}  // namespace unreft::smp
