#include "smp/protect/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

Lane::Lane(const GuardTask& task, GuardActivity& activity, uint32_t parity, bool encodes,
           ParityServer* server)
    : task_(task),
      activity_(activity),
      parity_(parity),
      stripe_(task.coded->layout().ParityStripes(task.coded->group.self)[parity]),
      encodes_(encodes),
      server_(server),
      encoder_(task, activity, stripe_, parity),
      fetches_(task.seams.executor, task.seams.pool, task.seams.peers, task.options.read_timeout) {}

void Lane::Run() {
  // What waits to be handed on counts, too: it takes memory.
  while (next_ < task_.coded->layout().positions() &&
         running_ + (server_ != nullptr ? server_->kept() : 0) < task_.options.protect_window) {
    ++running_;
    Start(next_++);
  }
  // Who waits for tiles does not wait for those that are kept, which may be the last.
  if (server_ != nullptr) server_->BePatient(encoder_.is_idle());
}

void Lane::Start(uint64_t position) {
  if (!encodes_) return Fetch(position);
  encoder_.Encode(position, [this](std::shared_ptr<const EncodedPosition> encoded) {
    OnEncoded(std::move(encoded));
  });
}

void Lane::DoWithout(uint32_t member) {
  if (encodes_ || task_.coded->layout().Aggregator(stripe_) != member) return;
  encodes_ = true;
  task_.seams.log.Warn(
      "version {}: node {} is gone, its stripe is encoded here from position {} of {}",
      task_.coded->version, task_.coded->group.slots[member], next_ - running_,
      task_.coded->layout().positions());
  // What was asked of it fails, and is tried again the other way.
  fetches_.Cancel();
}

void Lane::Cancel() {
  encoder_.Cancel();
  fetches_.Cancel();
}

void Lane::OnEncoded(std::shared_ptr<const EncodedPosition> encoded) {
  Finish(encoded->position, encoded->parity_crcs[parity_], encoded->input_crcs);
  if (server_ != nullptr) server_->OnEncoded(std::move(encoded));
}

void Lane::Fetch(uint64_t position) {
  ReadRequest request;
  request.set_kind(ReadRequest::FRESH_PARITY);
  SetVersion(task_.coded->version, request);
  request.set_stripe(stripe_);
  request.set_parity(parity_);
  request.set_first_block(position);
  request.set_blocks(1);
  request.set_coding(task_.coded->coding);
  activity_.Begin();
  fetches_.Read(
      task_.coded->HolderOf(stripe_, task_.coded->group.shape.k), request,
      task_.guard.view->block(parity_, position),
      [this, position, segment = task_.guard.segment](const absl::StatusOr<ReadHeader>& header) {
        if (!activity_.is_cancelled()) OnFetched(position, header);
        activity_.End();
      });
}

void Lane::OnFetched(uint64_t position, const absl::StatusOr<ReadHeader>& header) {
  absl::Status status = header.status();
  const uint32_t inputs = task_.coded->group.shape.k;
  if (status.ok() && header->input_crcs_size() != static_cast<int>(inputs)) {
    status = absl::DataLossError(fmt::format("a parity of {} blocks was sent, needed one of {}",
                                             header->input_crcs_size(), inputs));
  }
  if (!status.ok()) {
    if (absl::IsDataLoss(status)) {
      task_.seams.log.Warn("version {}: {}", task_.coded->version, status.message());
    }
    return activity_.Retry([this, position] { Start(position); });
  }
  auto crc = std::make_shared<uint32_t>();  // passes from the pool to the executor
  activity_.Submit([segment = task_.guard.segment, crc,
                    block = task_.guard.view->block(parity_, position)] { *crc = Crc32c(block); },
                   [this, position, crc, header = *header] {
                     if (*crc == header.crcs(0)) return Finish(position, *crc, header.input_crcs());
                     task_.seams.log.Warn(
                         "version {}: parity {} of position {} was not what was sent",
                         task_.coded->version, parity_, position);
                     activity_.Retry([this, position] { Start(position); });
                   });
}

template <typename Crcs>
void Lane::Finish(uint64_t position, uint32_t crc, const Crcs& input_crcs) {
  GuardView& view = *task_.guard.view;
  view.parity_crcs(parity_, task_.coded->layout().positions())[position] = crc;
  const auto inputs = view.input_crcs(parity_, position, task_.coded->group.shape.k);
  std::copy(input_crcs.begin(), input_crcs.end(), inputs.begin());
  --running_;
  ++finished_;
}

}  // namespace unreft::smp
