// A protector in a group RS(1,1): node 0 is new in its slot, has no rank and no guard yet; node 1
// has the slab of rank 0.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "smp/job/cluster_records.h"
#include "smp/protect/protector.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {

class ProtectorFixture : public GroupFixture {
 protected:
  static constexpr Version kNext{Timeline{1}, Step{12}};
  static constexpr Version kLater{Timeline{1}, Step{14}};
  static constexpr uint64_t kBlocks = 5;

  ProtectorFixture() : GroupFixture(1, 1) {
    options_.slots_per_rank = 2;
    *record_of_other_.mutable_group() = group();
    record_of_other_.add_members();
    record_of_other_.add_members()->add_slabs()->set_data_bytes(kBlocks * kBlockBytes);
    record_of_other_.set_member(1);
    Random random(7);
    data_ = RandomBytes(random, kBlocks * kBlockBytes);
    StartOther(NodeSlot{1}, [this](Peers& peers) { ServeOther(peers); });
    StartOwn();
    InTurn([&] {
      state_->record->AdoptTimelines({{kVersion.timeline, Version{}}}, /*took_part=*/false);
      state_->record->SetCommitted(kVersion, 1);
      server_ = std::make_unique<SlabServer>(*state_, *own_peers_);
      MakeProtector();
    });
  }
  ~ProtectorFixture() override {
    InTurn([&] { protector_.reset(); });
  }

  void MakeProtector() {
    protector_ =
        std::make_unique<Protector>(*state_, *own_peers_, *server_, job_, [this] { ++changes_; });
  }
  // Node 0's daemon is killed, and another has its memory.
  void StartAgain() {
    InTurn([&] {
      protector_.reset();
      MakeProtector();
      EXPECT_TRUE(protector_->Adopt().ok());
    });
  }

  // Node 1.
  void ServeOther(Peers& peers) {
    peers.Answer<MetaRequest, MetaReply>("meta", [this](NodeSlot, auto, auto done) {
      ++manifests_asked_;
      MetaReply reply;
      SlabDescription& slab = *reply.add_slabs();
      slab.set_world(1);
      slab.set_manifest(manifest_);
      slab.set_manifest_crc(Crc32c(std::as_bytes(std::span(manifest_))));
      done(std::move(reply));
    });
    peers.Serve("announce", [this](NodeSlot, const std::string& body, Transport::CallDone done) {
      AnnounceRequest request;
      UNREFT_CHECK(request.ParseFromString(body));
      ++announced_[VersionOf(request)];
      slabs_announced_ = request.slabs_size();
      done("");
    });
    peers.ServeReads([this](NodeSlot, const std::string& body, uint64_t, auto done) {
      ReadRequest request;
      UNREFT_CHECK(request.ParseFromString(body));
      if (!serves_reads_) return done(absl::UnavailableError("not yet"));
      done(SourceOf(std::span(data_).subspan(request.first_block() * kBlockBytes, kBlockBytes)));
    });
  }

  static constexpr uint64_t kDescriptionBytes = 4096;

  void Remake() {
    InTurn([&] {
      protector_->Remake(kVersion, record_of_other_, {kDescriptionBytes, kDescriptionBytes});
    });
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
      ASSERT_EQ(record->descriptions_size(), 1);
      EXPECT_EQ(record->descriptions(0).slot(), 1U);
      EXPECT_EQ(record->descriptions(0).slabs_size(), 1);
      protector_->Verify(kVersion, [&](absl::Status status) { verified = std::move(status); });
    });
    Settle();
    EXPECT_EQ(verified, absl::OkStatus());
    EXPECT_EQ(log_lines_.Count("version 1:9: its protection is restored on node 0"), 1U);
  }

  // As the newest view has it.
  void NameMemories(const std::string& of_node_1) {
    InTurn([&] {
      ViewRecord& view = job_.view.value;
      view.clear_members();
      for (const uint64_t slot : {0, 1}) view.add_members()->set_slot(slot);
      view.mutable_members(0)->set_incarnation(AsBytes(state_->record->incarnation()));
      view.mutable_members(1)->set_incarnation(of_node_1);
      protector_->OnJobChange();
    });
    Settle();
  }
  static AnnounceRequest Announcement(const std::string& incarnation, bool has_slab,
                                      Version version = kNext) {
    AnnounceRequest request;
    SetVersion(version, request);
    request.set_block_bytes(kBlockBytes);
    request.set_incarnation(incarnation);
    if (has_slab) request.add_slabs()->set_data_bytes(kBlocks * kBlockBytes);
    request.set_description_bytes_max(kDescriptionBytes);
    return request;
  }
  // Node 1's memory has a slab of the version, or none.
  void AnnounceSlab(const std::string& incarnation, bool has_slab, Version version = kNext) {
    const std::string request = Announcement(incarnation, has_slab, version).SerializeAsString();
    EXPECT_TRUE(Call(NodeSlot{1}, "announce", request).ok());
    Settle();
  }
  // How many slabs of node 1 went into the guard; none: there is no guard.
  std::optional<int> SlabsEncoded() {
    std::optional<int> slabs;
    InTurn([&] {
      const auto record = protector_->RecordOf(kNext);
      if (record != nullptr) slabs = record->members(1).slabs_size();
    });
    return slabs;
  }
  bool IsEncodedOf(const std::string& incarnation) {
    bool is_encoded = false;
    InTurn([&] {
      for (const GuardHeld& held : protector_->Held()) {
        is_encoded |= held.version == kNext && held.encoded.size() == 2 &&
                      held.encoded[1].memory == incarnation;
      }
    });
    return is_encoded;
  }

  // Node 1 tells of its slabs of the version.
  absl::Status Announce(Version version) {
    AnnounceRequest request;
    SetVersion(version, request);
    request.set_block_bytes(kBlockBytes);
    return Call(NodeSlot{1}, "announce", request.SerializeAsString()).status();
  }

  GuardRecord record_of_other_;
  std::string manifest_ = "manifest";  // of node 1's slab
  std::map<Version, int> announced_;   // to node 1
  int slabs_announced_ = 0;            // the last time
  int manifests_asked_ = 0;            // of node 1
  bool serves_reads_ = true;           // node 1
  int changes_ = 0;                    // that were told
  std::vector<std::byte> data_;
  std::unique_ptr<SlabServer> server_;
  std::unique_ptr<Protector> protector_;
};

}  // namespace unreft::smp
