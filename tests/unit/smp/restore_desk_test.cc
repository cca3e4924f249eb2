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

#include "base/crc32c.h"
#include "layout/manifest.h"
#include "smp/cluster_records.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/layout_testing.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Version kVersion{Timeline{1}, Step{9}};
constexpr uint64_t kNodes = 3;
constexpr uint64_t kBlocks = 4;
constexpr uint64_t kBlockBytes = 64;

uint32_t CrcOf(const std::string& bytes) { return Crc32c(std::as_bytes(std::span(bytes))); }

class RestoreDeskTest : public SmpFixture {
 protected:
  using RecordDone = absl::AnyInvocable<void(absl::StatusOr<GuardRecord>)>;
  struct Other {
    std::unique_ptr<SimExecutor> executor;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Peers> peers;
    bool describes = true;  // its slabs
    bool gives = true;      // its blocks
    std::function<void(RecordDone)> on_record;
    std::vector<absl::AnyInvocable<void(absl::StatusOr<ReadSource>)>> waiting;
  };

  RestoreDeskTest() : network_(scheduler_) {
    options_.nodes = kNodes;
    options_.data_chunks = 2;
    options_.parity_chunks = 1;
    options_.slots_per_rank = 2;
    options_.read_retry = milliseconds(50);
    options_.read_timeout = seconds(2);
    job_.store_id = "0123456789abcdef";
    record_of_group_.mutable_group()->set_k(2);
    Random random(7);
    for (uint64_t slot = 0; slot < kNodes; ++slot) {
      job_.present[NodeSlot{slot}].set_address(fmt::format("node{}", slot));
      record_of_group_.mutable_group()->add_slots(slot);
      MemberSlab& member = *record_of_group_.add_members();
      member.set_incarnation(fmt::format("incarnation {}", slot));
      if (slot == 0) continue;
      RankSlab& slab = *member.add_slabs();
      slab.set_rank(slot - 1);
      slab.set_data_bytes(kBlocks * kBlockBytes);
      data_[slot].resize(kBlocks * kBlockBytes);
      for (std::byte& byte : data_[slot]) byte = std::byte(random.Below(256));
      MakeOther(NodeSlot{slot});
    }
    *job_.view.value.add_groups() = record_of_group_.group();
    auto record = NewRecord();
    own_transport_ = *network_.NewTransport(*executor_, "node0");
    InTurn([&] {
      state_ = std::make_unique<NodeState>(
          NodeState{{*executor_, pool_, random_, segments_, *records_, processes_, log_}});
      state_->options = options_;
      state_->prefix = MemoryPrefix(options_);
      state_->record = std::move(record);
      state_->record->SetCommitted(kVersion, 2);
      state_->slots = std::make_unique<SlotStore>(
          SlotStore::Seams{*executor_, pool_, segments_, processes_, log_}, state_->options,
          boot_id_, state_->record->incarnation(), [] {});
      own_peers_ = std::make_unique<Peers>(*own_transport_, job_, "job", NodeSlot{0}, RandomId{2});
      protector_ = std::make_unique<Protector>(*state_, *own_peers_, job_, [] {});
      desk_ = std::make_unique<RestoreDesk>(*state_);
      desk_->Join({*own_peers_, job_, protector_.get(), [] {}});
    });
  }
  ~RestoreDeskTest() override {
    InTurn([&] {
      desk_.reset();
      protector_.reset();
      own_peers_.reset();
    });
    for (auto& [slot, other] : others_) other.executor->Kill();
  }

  void MakeOther(NodeSlot slot) {
    Other& other = others_[slot];
    other.executor = scheduler_.NewExecutor(fmt::format("node{}", slot));
    other.transport = *network_.NewTransport(*other.executor, fmt::format("node{}", slot));
    other.on_record = [this](RecordDone done) { done(GuardRecord(record_of_group_)); };
    other.executor->Deliver(Duration{}, [this, slot, &other] {
      other.peers = std::make_unique<Peers>(*other.transport, job_, "job", slot, RandomId{1});
      other.peers->Answer<MetaRequest, MetaReply>(
          "meta", [this, slot, &other](auto, auto, auto done) {
            if (!other.describes) return done(absl::UnavailableError("not now"));
            MetaReply reply;
            *reply.add_slabs() = MetaOf(slot);
            done(std::move(reply));
          });
      other.peers->Answer<MetaRequest, GuardRecord>(
          "record", [&other](auto, auto, auto done) { other.on_record(std::move(done)); });
      other.peers->ServeReads([this, slot, &other](auto, const std::string& body, auto, auto done) {
        ReadRequest request;
        UNREFT_CHECK(request.ParseFromString(body));
        if (!other.gives) return other.waiting.push_back(std::move(done));
        const auto block =
            std::span(data_[slot.value]).subspan(request.first_block() * kBlockBytes, kBlockBytes);
        ReadHeader header;
        header.add_crcs(Crc32c(block));
        ReadSource source;
        source.header = header.SerializeAsString();
        source.parts.push_back(block);
        done(std::move(source));
      });
    });
  }
  SlabMeta MetaOf(NodeSlot slot) const {
    const std::vector<std::byte>& data = data_[slot.value];
    layout::SlotManifest manifest;
    manifest.job = "job";
    manifest.version = kVersion;
    manifest.rank = Rank{slot.value - 1};
    manifest.world = 2;
    manifest.tensors = {TensorOf(slot)};
    manifest.parts = {{.tensor = 0, .shard_begin = 0, .bytes = data.size(), .slab_offset = 0}};
    manifest.block_bytes = kBlockBytes;
    manifest.data_bytes = data.size();
    SlabMeta meta;
    meta.set_rank(slot.value - 1);
    meta.set_world(2);
    meta.set_manifest(layout::EncodeManifest(manifest));
    std::vector<uint32_t> crcs;
    for (uint64_t block = 0; block < kBlocks; ++block) {
      crcs.push_back(Crc32c(std::span(data).subspan(block * kBlockBytes, kBlockBytes)));
    }
    meta.set_crc_table(
        std::string(reinterpret_cast<const char*>(crcs.data()), crcs.size() * sizeof(uint32_t)));
    meta.set_manifest_crc(CrcOf(meta.manifest()));
    meta.set_crc_table_crc(CrcOf(meta.crc_table()));
    meta.set_extras_crc(CrcOf(""));
    return meta;
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
      session_ = std::make_unique<RankSession>(hello, segments_);
      session_->timeline = Timeline{2};
      const TensorSpec tensor = TensorOf(NodeSlot{1});
      desk_->OnPlanRequest(*session_, {1, ToWire({&tensor, 1})});
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

  SimNetwork network_;
  meta::JobState job_;
  GuardRecord record_of_group_;
  std::array<std::vector<std::byte>, kNodes> data_;
  CaptureLogSink log_lines_;
  Log log_{log_lines_};
  std::map<NodeSlot, Other> others_;
  std::unique_ptr<Transport> own_transport_;
  std::unique_ptr<Peers> own_peers_;
  std::unique_ptr<NodeState> state_;
  std::unique_ptr<Protector> protector_;
  std::unique_ptr<RankSession> session_;
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
