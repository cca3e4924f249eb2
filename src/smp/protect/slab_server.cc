#include "smp/protect/slab_server.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

SlabServer::SlabServer(NodeState& state, Peers& peers) : self_(peers.self()), source_(state) {
  peers.Answer<MetaRequest, MetaReply>("meta",
                                       [this](NodeSlot, const MetaRequest& request, auto done) {
                                         OnMeta(request, std::move(done));
                                       });
  peers.ServeReads([this](NodeSlot, const std::string& body, uint64_t bytes, auto done) {
    OnRead(body, bytes, std::move(done));
  });
}

void SlabServer::OnRead(const std::string& body, uint64_t bytes, SlabSource::ReadDone done) {
  ReadRequest request;
  if (!request.ParseFromString(body)) {
    return done(absl::InvalidArgumentError(
        fmt::format("a read request of {} bytes does not parse", body.size())));
  }
  Read(request, bytes, std::move(done));
}

void SlabServer::Read(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done) {
  if (request.kind() == ReadRequest::DATA) return source_.OnRead(request, bytes, std::move(done));
  if (request.kind() == ReadRequest::DECODED) {
    if (decoded_) return decoded_(request, bytes, std::move(done));
    return done(absl::NotFoundError(fmt::format("node {} restores nothing", self_)));
  }
  if (guarded_ != nullptr) return guarded_->ReadParity(request, bytes, std::move(done));
  done(absl::NotFoundError(fmt::format("node {} guards nothing", self_)));
}

void SlabServer::OnMeta(const MetaRequest& request, SlabSource::MetaDone done) {
  const Version version = VersionOf(request);
  if (NodeSlot{request.slot()} == self_) return source_.OnMeta(request, std::move(done));
  if (const auto record = guarded_ == nullptr ? nullptr : guarded_->RecordOf(version)) {
    for (const MemberDescription& description : record->descriptions()) {
      if (description.slot() != request.slot()) continue;
      MetaReply reply;
      *reply.mutable_slabs() = description.slabs();
      return done(std::move(reply));
    }
  }
  done(absl::NotFoundError(fmt::format("node {} has no description of node {} of version {}", self_,
                                       request.slot(), version)));
}

}  // namespace unreft::smp
