// What the members of a protection group tell each other: to a real Protector of node 0 of three,
// over the fakes, that is making its share of a version; and a share that is made anew by the
// record that another tells, of slabs that another describes.
//
// A message: its kind, its length in two bytes, its bytes.
#include "base/check.h"
#include "smp/job/cluster_records.h"
#include "smp/protect/protector.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::fuzz {
namespace {

enum Kind : uint8_t { kAnnounce, kMeta, kRecord, kRead, kMetaReply, kHeader, kRemake, kKinds };

constexpr uint64_t kBlocks = 3;

class Group final : public smp::GroupFixture {
 public:
  Group() : GroupFixture(2, 1), data_(kBlocks * kBlockBytes) {
    options_.slots_per_rank = 2;
    options_.memory_bytes_max = 1 << 20;
    for (const uint64_t slot : {1, 2}) {
      StartOther(NodeSlot{slot}, [this](Peers& peers) { Serve(peers); });
    }
    StartOwn();
    InTurn([&] {
      state_->record->SetCommitted(kVersion, 1);
      server_ = std::make_unique<smp::SlabServer>(*state_, *own_peers_);
      protector_ = std::make_unique<smp::Protector>(*state_, *own_peers_, *server_, job_, [] {});
    });
    Settle();
  }
  ~Group() override {
    InTurn([&] { protector_.reset(); });
  }

  void Say(uint8_t kind, const std::string& bytes) {
    switch (kind) {
      case kAnnounce:
        return Ask("announce", bytes);
      case kMeta:
        return Ask("meta", bytes);
      case kRecord:
        return Ask("record", bytes);
      case kRead:
        return Read(bytes);
      case kMetaReply:
        meta_reply_ = bytes;
        return;
      case kHeader:
        header_ = bytes;
        return;
      default:
        return Remake(bytes);
    }
  }
  void Run(std::string_view bytes) {
    Draw draw(bytes);
    // Each costs up to two simulated seconds.
    for (int messages = 0; !draw.empty() && messages < 16; ++messages) {
      const auto kind = static_cast<uint8_t>(draw.Below(kKinds));
      Say(kind, draw.LongText());
    }
    End();
  }
  bool IsGuarded() {
    bool is_guarded = false;
    InTurn([&] { is_guarded = protector_->RecordOf(kVersion) != nullptr; });
    return is_guarded;
  }

  static GuardRecord ExampleRecord();
  static SlabDescription ExampleMeta(Rank rank);
  static constexpr Version Committed() { return kVersion; }

 private:
  using Peers = smp::Peers;
  void TestBody() override {}

  void End() {
    Settle(std::chrono::seconds(30));
    bool is_verified = false;
    InTurn([&] {
      protector_->Verify(kVersion, [&](const absl::Status&) { is_verified = true; });
      for (const smp::GuardHeld& held : protector_->Held()) {
        (void)protector_->DescribedManifests(held.version);
      }
    });
    Settle();
    UNREFT_CHECK(is_verified);
  }

  // What another member answers.
  void Serve(Peers& peers) {
    peers.Answer<MetaRequest, MetaReply>("meta", [this](NodeSlot, auto, auto done) {
      MetaReply reply;
      if (!reply.ParseFromString(meta_reply_)) return done(absl::UnavailableError("none"));
      done(std::move(reply));
    });
    peers.Serve("announce", [](NodeSlot, auto, auto done) { done(""); });
    peers.ServeReads([this](NodeSlot, auto, uint64_t bytes, auto done) {
      ReadSource source = smp::SourceOf(std::span(data_).first(std::min(bytes, data_.size())));
      if (!header_.empty()) source.header = header_;
      done(std::move(source));
    });
  }
  void Ask(const std::string& method, const std::string& body) {
    const absl::StatusOr<std::string> answer = Call(NodeSlot{1}, method, body);
    UNREFT_CHECK(!absl::IsUnknown(answer.status()), "'{}' is not answered", method);
  }
  void Read(const std::string& body) {
    bool is_answered = false;
    std::vector<std::byte> into(kBlockBytes);
    InTurn([&] {
      own_peers_->Read(NodeSlot{0}, body, into, std::chrono::seconds(1),
                       [&](const auto&) { is_answered = true; });
    });
    Settle(std::chrono::seconds(2));
    UNREFT_CHECK(is_answered);
  }
  // As RestoreDesk uses the record of another.
  void Remake(const std::string& bytes) {
    GuardRecord record;
    if (!record.ParseFromString(bytes)) return;
    const std::vector<uint64_t> description_bytes(record.members_size(), 4096);
    InTurn([&] { protector_->Remake(kVersion, record, description_bytes); });
    Settle(std::chrono::milliseconds(100));
  }

  std::vector<std::byte> data_;
  std::string meta_reply_;
  std::string header_;
  std::unique_ptr<smp::SlabServer> server_;
  std::unique_ptr<smp::Protector> protector_;
};

GuardRecord Group::ExampleRecord() {
  GuardRecord record;
  for (uint64_t slot = 0; slot < 3; ++slot) record.mutable_group()->add_slots(slot);
  record.mutable_group()->set_k(2);
  record.add_members();
  for (uint64_t rank = 0; rank < 2; ++rank) {
    MemberSlab& member = *record.add_members();
    member.set_incarnation("memory");
    RankSlab& slab = *member.add_slabs();
    slab.set_rank(rank);
    slab.set_data_bytes((rank + 1) * kBlockBytes);
  }
  record.set_member(1);
  return record;
}

SlabDescription Group::ExampleMeta(Rank rank) {
  const std::vector<std::byte> data(kBlockBytes);
  return DescriptionOf(rank, 2, TensorSpec{"w", Dtype::kUint8, {kBlockBytes}, {0}, {kBlockBytes}},
                       data);
}

std::string Input(uint8_t kind, const google::protobuf::MessageLite& message) {
  return static_cast<char>(kind) + LongTextOf(message.SerializeAsString());
}

}  // namespace

std::vector<std::string> Seeds() {
  AnnounceRequest announce;
  smp::SetVersion({Timeline{1}, Step{12}}, announce);
  announce.set_block_bytes(64);
  announce.set_description_bytes_max(4096);
  announce.set_incarnation("memory");
  RankSlab& slab = *announce.add_slabs();
  slab.set_rank(1);
  slab.set_generation(7);
  slab.set_data_bytes(100);
  MetaRequest meta;
  smp::SetVersion(Group::Committed(), meta);
  meta.set_slot(1);
  meta.add_ranks(0);
  MetaReply described;
  for (const Rank rank : {Rank{0}, Rank{1}}) *described.add_slabs() = Group::ExampleMeta(rank);
  ReadHeader header;
  header.add_crcs(0);
  header.add_input_crcs(0);
  std::string reads;
  for (const auto kind :
       {ReadRequest::DATA, ReadRequest::FRESH_PARITY, ReadRequest::STORED_PARITY}) {
    ReadRequest read;
    read.set_kind(kind);
    smp::SetVersion(Group::Committed(), read);
    read.set_blocks(1);
    reads += Input(kRead, read);
  }
  const std::string remake = Input(kMetaReply, described) + Input(kRemake, Group::ExampleRecord());
  Group group;
  group.Run(remake);
  UNREFT_CHECK(group.IsGuarded(), "the seed does not get as far as it did");
  return {Input(kAnnounce, announce) + reads,
          remake + reads + Input(kMeta, meta) + Input(kRecord, meta),
          Input(kHeader, header) + remake};
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  unreft::fuzz::Group().Run(unreft::fuzz::Bytes(data, size));
  return 0;
}
