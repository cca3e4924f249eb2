#include "tests/sim/cluster/lying_transport.h"

#include <unreft/cluster.pb.h>

#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "smp/job/cluster_records.h"

namespace unreft::sim {
namespace {

using Versions = google::protobuf::RepeatedPtrField<VersionHolding>;

// All that is sealed is guarded, and every node has copies of every manifest.
class SaysGuarded {
 public:
  void Lie(NodeSlot from, NodeReport& report) {
    for (VersionHolding& version : *report.mutable_versions()) {
      auto& known = sealed_[smp::VersionOf(version)];
      if (!version.sealed().empty()) known[from] = version;
      version.set_guarded(true);
      version.clear_descriptions();
      for (const auto& [slot, holding] : known) {
        if (slot == from) continue;
        DescriptionHolding& description = *version.add_descriptions();
        description.set_slot(slot.value);
        for (const SealedRank& sealed : holding.sealed()) {
          description.add_ranks(sealed.rank());
          description.set_world(sealed.world());
        }
      }
    }
  }

 private:
  std::map<Version, std::map<NodeSlot, VersionHolding>> sealed_;
};

// What is claimed is sealed, and is like what was sealed last.
class SaysSealed {
 public:
  void Lie(Versions& versions) {
    for (const VersionHolding& version : versions) {
      if (!version.sealed().empty() && smp::VersionOf(version) >= smp::VersionOf(last_)) {
        last_ = version;
      }
    }
    for (VersionHolding& version : versions) {
      if (!version.sealed().empty() || smp::VersionOf(version) < smp::VersionOf(last_)) continue;
      *version.mutable_sealed() = last_.sealed();
      version.clear_failure();
      lies_.insert(smp::VersionOf(version));
    }
  }
  // Of a version that is a lie it shows another.
  void Lie(VerifyRequest& request) const {
    if (lies_.contains(smp::VersionOf(request))) {
      smp::SetVersion(smp::VersionOf(last_), request);
    }
  }

 private:
  VersionHolding last_;
  std::set<Version> lies_;
};

// Node 1 in the place of node 0, and node 0 in that of any other.
std::string NameAnother(std::string obstacle) {
  constexpr std::string_view kNode = "node ";
  const size_t at = obstacle.find(kNode);
  if (at == std::string::npos) return obstacle;
  char& digit = obstacle.at(at + kNode.size());
  digit = digit == '0' ? '1' : '0';
  return obstacle;
}

class LyingTransport final : public Transport {
 public:
  LyingTransport(PlantedBug bug, std::unique_ptr<Transport> transport)
      : bug_(bug), transport_(std::move(transport)) {}

  const std::string& address() const override { return transport_->address(); }
  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, CallDone done) override {
    if (bug_ == PlantedBug::kReportsNothing && method == "report") {
      request = Change<NodeReport>(request, [](NodeSlot, NodeReport& report) {
        if (report.round_closed() != 0) report.clear_versions();
      });
    }
    if (bug_ == PlantedBug::kUnaskedFreshStart && method == "report" && ++reports_ % 64 == 0) {
      Envelope envelope;
      envelope.ParseFromString(request);
      FreshStartRequest fresh_start;
      fresh_start.set_force(true);  // ranks are connected
      envelope.set_body(fresh_start.SerializeAsString());
      transport_->Call(address, "fresh-start", envelope.SerializeAsString(), timeout, [](auto) {});
    }
    if (bug_ == PlantedBug::kReportsTheUnsealed && method == "report") {
      request = Change<NodeReport>(request, [this](NodeSlot, NodeReport& report) {
        says_sealed_.Lie(*report.mutable_versions());
      });
    }
    if (bug_ == PlantedBug::kTellsNoCopy && method == "report") {
      request = Change<NodeReport>(request, [](NodeSlot from, NodeReport& report) {
        if (from == NodeSlot{}) return;
        report.clear_kept_epoch();
        report.clear_kept_sequence();
      });
    }
    if (bug_ == PlantedBug::kCallsItOver && method == "report") {
      request = Change<NodeReport>(
          request, [](NodeSlot, NodeReport& report) { report.clear_lives_round(); });
    }
    if (bug_ == PlantedBug::kTellsNoSkip && method == "report") {
      request = Change<NodeReport>(request, [](NodeSlot, NodeReport& report) {
        for (VersionHolding& version : *report.mutable_versions()) version.clear_failure();
        for (RegisteredRank& rank : *report.mutable_registered()) rank.clear_passed_step();
      });
    }
    transport_->Call(address, method, std::move(request), timeout, std::move(done));
  }
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, ReadDone done) override {
    // No parity is ever encoded, so that nobody is guarded by chance.
    const std::string& to = SaysAllIsGuarded() ? "" : address;
    const ReadRequest::Kind kind = KindOf(request);
    if (bug_ == PlantedBug::kStagesPerRank && kind == ReadRequest::DATA) {
      auto other = std::make_shared<std::vector<std::byte>>(into.size());
      transport_->Read(to, request, *other, timeout, [other](const auto&) {});
    }
    if (bug_ == PlantedBug::kDecodesWhenBusy && kind == ReadRequest::DATA) {
      done = [done = std::move(done)](absl::StatusOr<std::string> header) mutable {
        const bool is_busy = absl::IsResourceExhausted(header.status());
        done(is_busy ? absl::NotFoundError("it is lost") : std::move(header));
      };
    }
    if (bug_ == PlantedBug::kDecodesItself && kind == ReadRequest::DECODED) {
      done = [done = std::move(done)](const auto&) mutable {
        done(absl::UnimplementedError("nobody decodes for others"));
      };
    }
    return transport_->Read(to, std::move(request), into, timeout, std::move(done));
  }
  void Cancel(TransferId transfer) override { transport_->Cancel(transfer); }

  void Serve(const std::string& method, CallHandler handler) override {
    if (handler && SaysAllIsGuarded() && method == "report") {
      handler = [this, handler = std::move(handler)](const std::string& request,
                                                     CallDone done) mutable {
        handler(Change<NodeReport>(
                    request,
                    [this](NodeSlot from, NodeReport& report) { says_guarded_.Lie(from, report); }),
                std::move(done));
      };
    }
    if (handler && bug_ == PlantedBug::kReportsTheUnsealed && method == "verify") {
      handler = [this, handler = std::move(handler)](const std::string& request,
                                                     CallDone done) mutable {
        handler(Change<VerifyRequest>(
                    request, [this](NodeSlot, VerifyRequest& verify) { says_sealed_.Lie(verify); }),
                [this, done = std::move(done)](absl::StatusOr<std::string> bytes) mutable {
                  if (bytes.ok()) LieInPage(*bytes);
                  done(std::move(bytes));
                });
      };
    }
    if (handler && bug_ == PlantedBug::kNamesAnother && method == "report") {
      handler = [handler = std::move(handler)](const std::string& request, CallDone done) mutable {
        handler(request, [done = std::move(done)](absl::StatusOr<std::string> bytes) mutable {
          ReportReply reply;
          if (bytes.ok() && reply.ParseFromString(*bytes) && !reply.obstacle().empty()) {
            reply.set_obstacle(NameAnother(reply.obstacle()));
            bytes = reply.SerializeAsString();
          }
          done(std::move(bytes));
        });
      };
    }
    transport_->Serve(method, std::move(handler));
  }
  void ServeReads(ReadHandler handler) override { transport_->ServeReads(std::move(handler)); }

 private:
  bool SaysAllIsGuarded() const { return bug_ == PlantedBug::kCommitsUnguarded; }

  // Where all of the answer is in one page.
  void LieInPage(std::string& bytes) {
    Page page;
    VerifyReply reply;
    if (!page.ParseFromString(bytes) || page.bytes().size() != page.whole_bytes() ||
        !reply.ParseFromString(page.bytes())) {
      return;
    }
    says_sealed_.Lie(*reply.mutable_versions());
    page.set_bytes(reply.SerializeAsString());
    page.set_whole_bytes(page.bytes().size());
    page.set_whole_crc(Crc32c(std::as_bytes(std::span(page.bytes()))));
    bytes = page.SerializeAsString();
  }

  static ReadRequest::Kind KindOf(const std::string& request) {
    Envelope envelope;
    ReadRequest read;
    const bool is_read = envelope.ParseFromString(request) && read.ParseFromString(envelope.body());
    return is_read ? read.kind() : ReadRequest::NONE;
  }

  template <typename Message, typename Lie>
  static std::string Change(const std::string& request, Lie lie) {
    Envelope envelope;
    Message message;
    if (!envelope.ParseFromString(request) || !message.ParseFromString(envelope.body())) {
      return request;
    }
    lie(NodeSlot{envelope.slot()}, message);
    envelope.set_body(message.SerializeAsString());
    return envelope.SerializeAsString();
  }

  const PlantedBug bug_;
  const std::unique_ptr<Transport> transport_;
  uint64_t reports_ = 0;
  SaysGuarded says_guarded_;
  SaysSealed says_sealed_;
};

}  // namespace

std::unique_ptr<Transport> LieOver(const Machine& machine, std::unique_ptr<Transport> transport) {
  switch (machine.bug) {
    case PlantedBug::kCommitsUnguarded:
    case PlantedBug::kReportsTheUnsealed:
    case PlantedBug::kReportsNothing:
    case PlantedBug::kUnaskedFreshStart:
    case PlantedBug::kCallsItOver:
    case PlantedBug::kTellsNoCopy:
    case PlantedBug::kTellsNoSkip:
    case PlantedBug::kNamesAnother:
    case PlantedBug::kStagesPerRank:
    case PlantedBug::kDecodesWhenBusy:
    case PlantedBug::kDecodesItself:
      break;
    default:
      return transport;
  }
  return std::make_unique<LyingTransport>(machine.bug, std::move(transport));
}

}  // namespace unreft::sim
