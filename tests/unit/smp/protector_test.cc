// After a loss a node's share of a restored version's protection is made anew, whatever it takes.
//
// RS(1,1): node 0 is new in its slot, has no rank and no guard yet; node 1 has the slab of rank 0.

#include "smp/protector.h"

#include <memory>
#include <optional>
#include <vector>

#include "base/crc32c.h"
#include "layout/manifest.h"
#include "smp/cluster_records.h"
#include "tests/fakes/capture_log_sink.h"
#include "tests/fakes/sim_transport.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Version kVersion{Timeline{1}, Step{9}};
constexpr Version kNext{Timeline{1}, Step{12}};
constexpr uint64_t kBlocks = 5;
constexpr uint64_t kBlockBytes = 64;

class ProtectorTest : public SmpFixture {
 protected:
  ProtectorTest() : network_(scheduler_) {
    options_.nodes = 2;
    options_.data_chunks = options_.parity_chunks = 1;
    options_.slots_per_rank = 2;
    options_.read_retry = milliseconds(10);
    job_.store_id = "0123456789abcdef";
    for (const uint64_t slot : {0, 1}) {
      job_.present[NodeSlot{slot}].set_address(fmt::format("node{}", slot));
      record_of_other_.mutable_group()->add_slots(slot);
    }
    record_of_other_.mutable_group()->set_k(1);
    record_of_other_.add_members();
    record_of_other_.add_members()->add_slabs()->set_data_bytes(kBlocks * kBlockBytes);
    record_of_other_.set_member(1);
    *job_.view.value.add_groups() = record_of_other_.group();
    Random random(7);
    data_.resize(kBlocks * kBlockBytes);
    for (std::byte& byte : data_) byte = std::byte(random.Below(256));
    MakeOther();
    own_transport_ = *network_.NewTransport(*executor_, "node0");
    record_ = NewRecord();
    InTurn([&] {
      state_ = std::make_unique<NodeState>(
          NodeState{{*executor_, pool_, random_, segments_, *records_, processes_, log_}});
      state_->options = options_;
      state_->prefix = MemoryPrefix(options_);
      state_->record = std::move(record_);
      state_->record->SetCommitted(kVersion, 1);
      state_->slots = std::make_unique<SlotStore>(
          SlotStore::Seams{*executor_, pool_, segments_, processes_, log_}, state_->options,
          boot_id_, state_->record->incarnation(), [] {});
      own_peers_ = std::make_unique<Peers>(*own_transport_, job_, "job", NodeSlot{0}, RandomId{2});
      protector_ = std::make_unique<Protector>(*state_, *own_peers_, job_, [] {});
    });
  }
  ~ProtectorTest() override {
    InTurn([&] {
      protector_.reset();
      own_peers_.reset();
    });
    other_->Kill();
  }

  // Node 1.
  void MakeOther() {
    other_transport_ = *network_.NewTransport(*other_, "node1");
    other_->Deliver(Duration{}, [this] {
      other_peers_ =
          std::make_unique<Peers>(*other_transport_, job_, "job", NodeSlot{1}, RandomId{1});
      other_peers_->Answer<MetaRequest, MetaReply>("meta", [](NodeSlot, auto, auto done) {
        MetaReply reply;
        SlabMeta& slab = *reply.add_slabs();
        slab.set_manifest("manifest");
        slab.set_manifest_crc(Crc32c(std::as_bytes(std::span("manifest", 8))));
        done(std::move(reply));
      });
      other_peers_->ServeReads([this](NodeSlot, const std::string& body, uint64_t, auto done) {
        ReadRequest request;
        UNREFT_CHECK(request.ParseFromString(body));
        const auto block =
            std::span(data_).subspan(request.first_block() * kBlockBytes, kBlockBytes);
        ReadHeader header;
        header.add_crcs(Crc32c(block));
        ReadSource source;
        source.header = header.SerializeAsString();
        source.parts.push_back(block);
        done(std::move(source));
      });
    });
  }

  void Remake() {
    InTurn([&] { protector_->Remake(kVersion, record_of_other_); });
  }
  bool IsGuarded() {
    bool guarded = false;
    InTurn([&] { guarded = protector_->RecordOf(kVersion) != nullptr; });
    return guarded;
  }
  void ExpectGuarded() {
    ASSERT_TRUE(IsGuarded());
    std::optional<absl::Status> verified;
    InTurn([&] {
      const auto record = protector_->RecordOf(kVersion);
      EXPECT_EQ(CodingOf(record->group(), record->members()),
                CodingOf(record_of_other_.group(), record_of_other_.members()));
      ASSERT_EQ(record->replicas_size(), 1);
      EXPECT_EQ(record->replicas(0).slot(), 1U);
      EXPECT_EQ(record->replicas(0).slabs_size(), 1);
      protector_->Verify(kVersion, [&](absl::Status status) { verified = std::move(status); });
    });
    Settle();
    EXPECT_EQ(verified, absl::OkStatus());
    EXPECT_EQ(log_lines_.Count("version 1:9: its protection is restored on node 0"), 1U);
  }

  SimNetwork network_;
  meta::JobState job_;
  GuardRecord record_of_other_;
  std::vector<std::byte> data_;
  CaptureLogSink log_lines_;
  Log log_{log_lines_};
  std::unique_ptr<SimExecutor> other_ = scheduler_.NewExecutor("other");
  std::unique_ptr<Transport> other_transport_;
  std::unique_ptr<Peers> other_peers_;
  std::unique_ptr<Transport> own_transport_;
  std::unique_ptr<Peers> own_peers_;
  std::unique_ptr<NodeRecord> record_;
  std::unique_ptr<NodeState> state_;
  std::unique_ptr<Protector> protector_;
};

// It was given up in the turn that asked for guards, before one had its pages.
TEST_F(ProtectorTest, AFreshNodeMakesItsShareAnewWhenAGuardHasItsPages) {
  Remake();
  EXPECT_FALSE(IsGuarded());
  EXPECT_EQ(log_lines_.Count("version 1:9: its protection is not restored on node 0 yet"), 1U);
  Settle(seconds(1));
  ExpectGuarded();
}

TEST_F(ProtectorTest, MemoryThatIsLackingForItIsAskedForAgain) {
  const uint64_t bytes_max = host_.bytes_max();
  host_.set_bytes_max(host_.bytes_used());
  Remake();
  Settle(seconds(10));
  EXPECT_FALSE(IsGuarded());
  EXPECT_GE(log_lines_.Count("no protection"), 1U);
  host_.set_bytes_max(bytes_max);
  Settle(seconds(10));
  ExpectGuarded();
}

TEST_F(ProtectorTest, PagesThatAreNotToBeHadAreAskedForAgain) {
  // Enough for the pages of the headers, as others take the rest meanwhile.
  Remake();
  const uint64_t bytes_max = host_.bytes_max();
  host_.set_bytes_max(host_.bytes_used());
  Settle(seconds(10));
  EXPECT_FALSE(IsGuarded());
  host_.set_bytes_max(bytes_max);
  Settle(seconds(10));
  ExpectGuarded();
}

TEST_F(ProtectorTest, AskedForAgainBeforeThereIsAGuardItIsOfTheNewestRecord) {
  record_of_other_.mutable_members(1)->mutable_slabs(0)->set_generation(4);
  Remake();
  record_of_other_.mutable_members(1)->mutable_slabs(0)->set_generation(5);
  Remake();
  Settle(seconds(1));
  ExpectGuarded();
}

TEST_F(ProtectorTest, WhatWaitsForAGuardEndsWhenSomethingElseIsCommitted) {
  Remake();
  InTurn([&] {
    state_->record->SetCommitted(kNext, 1);
    protector_->OnCommitted(kNext);
  });
  Settle(seconds(1));
  EXPECT_FALSE(IsGuarded());
  InTurn([&] {
    for (Guard* guard : protector_->guards().All()) EXPECT_EQ(guard->phase, GuardPhase::kFree);
  });
}

TEST_F(ProtectorTest, ARecordOfAnotherGroupIsRefused) {
  record_of_other_.mutable_group()->set_slots(0, 7);
  Remake();
  EXPECT_EQ(log_lines_.Count("version 1:9: the group's record is of other members"), 1U);
  EXPECT_TRUE(protector_->guards().All().empty());
}

}  // namespace
}  // namespace unreft::smp
