// What nodes tell the leader: reports, answers to its questions, pins; to a real Leader of four
// nodes over the fakes. Whatever it is told, every record that it writes is one that all take.
//
// A message: its kind, the node that says it, its length in two bytes, its bytes.
#include "base/check.h"
#include "meta/record_checks.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/smp/leader_fixture.h"

namespace unreft::fuzz {
namespace {

enum Kind : uint8_t { kReport, kVerifyReply, kManifestReply, kPin, kKinds };

class Job final : public smp::LeaderFixture {
 public:
  Job() {
    options_.pins = 1;
    for (auto& [slot, node] : nodes_) InTurn([&] { Script(node); });
    Ask(1);
  }

  void Say(uint8_t kind, NodeSlot from, const std::string& bytes) {
    if (kind == kVerifyReply) {
      verify_reply_ = bytes;
    } else if (kind == kManifestReply) {
      manifest_reply_ = bytes;
    } else if (kind == kPin) {
      PinRequest request;
      if (!request.ParseFromString(bytes)) return;
      InTurn([&] { leader_->AskPins(std::move(request), [](auto) {}); });
    } else {
      Tell(from, bytes);
    }
    Settle(std::chrono::milliseconds(300));
    CheckRecords();
  }
  // Deadlines pass.
  void End() {
    Settle(std::chrono::seconds(25));
    CheckRecords();
  }

  NodeReport ExampleReport(uint64_t attempt) {
    const Version version = At(1, 5);
    Protect(version);
    Register(NodeSlot{1}, Rank{1}, {Whole("w", {4})}, attempt);
    ReportAll();
    NodeReport report = nodes_.at(NodeSlot{1}).report;
    AskingRank& asking = *report.add_asking();
    asking.set_rank(1);
    asking.set_pid(4711);
    return report;
  }
  std::string ExampleManifest() { return ManifestOf(At(1, 5), Rank{1}); }

 private:
  void TestBody() override {}

  // Its answers are the input's.
  void Script(smp::ReportingNode& node) {
    node.peers->Answer<VerifyRequest, VerifyReply>(
        "verify", [this](NodeSlot, const VerifyRequest&, auto done) {
          VerifyReply reply;
          if (!reply.ParseFromString(verify_reply_)) return done(absl::UnavailableError("none"));
          done(std::move(reply));
        });
    node.peers->Answer<ManifestRequest, ManifestReply>(
        "manifests", [this](NodeSlot, const ManifestRequest&, auto done) {
          ManifestReply reply;
          if (!reply.ParseFromString(manifest_reply_)) return done(absl::UnavailableError("none"));
          done(std::move(reply));
        });
  }
  // Of the node's life that the leader sees: it would refuse another's.
  void Tell(NodeSlot from, const std::string& bytes) {
    NodeReport report;
    if (!report.ParseFromString(bytes)) return;
    smp::ReportParts parts;
    UNREFT_CHECK(smp::CutReport(bytes, parts), "what can be read can be cut");
    UNREFT_CHECK(parts.versions.size() == static_cast<size_t>(report.versions_size()));
    NodeReport& known = nodes_.at(from).report;
    report.set_session(known.session());
    report.set_incarnation(known.incarnation());
    known.set_number(known.number() + 1);
    report.set_number(known.number());
    InTurn([&] { (void)leader_->OnReport(from, report.SerializeAsString()); });
  }
  void CheckRecords() {
    const auto check = [](const auto& stored) {
      const absl::Status status = meta::CheckRecord(stored.value);
      UNREFT_CHECK(!stored.exists() || status.ok(), "{}", std::string(status.message()));
    };
    check(store_->state().view);
    check(store_->state().timeline);
    check(store_->state().commit);
    check(store_->state().abandoned);
    check(store_->state().pins);
    UNREFT_CHECK(store_->ready());
    (void)leader_->Exposure().SerializeAsString();
  }

  std::string verify_reply_;
  std::string manifest_reply_;
};

std::string Input(uint8_t kind, uint8_t from, const google::protobuf::MessageLite& message) {
  return std::string{static_cast<char>(kind), static_cast<char>(from)} +
         LongTextOf(message.SerializeAsString());
}

}  // namespace

std::vector<std::string> Seeds() {
  Job job;
  NodeReport report = job.ExampleReport(1);
  VerifyReply verified;
  *verified.mutable_versions() = report.versions();
  verified.add_manifests(job.ExampleManifest());
  ManifestReply manifests;
  manifests.add_manifests(job.ExampleManifest());
  PinRequest pin;
  pin.set_owner("evaluation");
  pin.set_for_ms(60'000);
  const std::string answers =
      Input(kVerifyReply, 0, verified) + Input(kManifestReply, 0, manifests);
  std::string asks = answers;
  std::string commits = answers;
  for (uint8_t node = 0; node < 4; ++node) {
    NodeReport asking = report;
    asking.set_attempt(2);
    asking.set_world(4);
    asking.set_round_closed(2);
    asking.mutable_asking(0)->set_rank(node);
    for (VersionHolding& version : *asking.mutable_versions()) {
      version.mutable_sealed(0)->set_rank(node);
    }
    asks += Input(kReport, node, asking);
    asking.clear_asking();
    commits += Input(kReport, node, asking);
  }
  return {asks + asks + Input(kPin, 0, pin), commits + Input(kPin, 1, pin),
          Input(kReport, 1, report)};
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  fuzz::Draw draw(fuzz::Bytes(data, size));
  fuzz::Job job;
  // Each costs a third of a simulated second, in which four nodes and a store do what they do.
  for (int messages = 0; !draw.empty() && messages < 16; ++messages) {
    const auto kind = static_cast<uint8_t>(draw.Below(fuzz::kKinds));
    const unreft::NodeSlot from{draw.Below(4)};
    job.Say(kind, from, draw.LongText());
  }
  job.End();
  return 0;
}
