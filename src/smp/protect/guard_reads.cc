#include "smp/protect/guard_reads.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

namespace unreft::smp {

void GuardReads::Read(uint32_t member, const ReadRequest& request, std::span<std::byte> into,
                      Done done) {
  activity_.Begin();
  auto transfer = std::make_shared<TransferId>();  // known to its own end
  *transfer = task_.seams.peers.Read(
      task_.coded->group.slots[member], request.SerializeAsString(), into,
      task_.options.read_timeout,
      lifetime_.Bind(
          [this, transfer, done = std::move(done)](absl::StatusOr<std::string> header) mutable {
            transfers_.erase(*transfer);
            if (!activity_.is_cancelled()) done(std::move(header));
            activity_.End();
          }));
  transfers_.insert(*transfer);
}

void GuardReads::Cancel() {
  for (const TransferId transfer : transfers_) task_.seams.peers.Cancel(transfer);
}

absl::StatusOr<ReadHeader> ParseBlockHeader(const std::string& bytes, size_t inputs) {
  ReadHeader header;
  if (!header.ParseFromString(bytes) || header.crcs_size() != 1 ||
      static_cast<size_t>(header.input_crcs_size()) != inputs) {
    return absl::DataLossError(fmt::format("a read's header needs 1 and {} CRCs, found {} and {}",
                                           inputs, header.crcs_size(), header.input_crcs_size()));
  }
  return header;
}

}  // namespace unreft::smp
