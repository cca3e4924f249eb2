#include "smp/protect/block_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"

namespace unreft::smp {
namespace {

absl::StatusOr<ReadHeader> ParseHeader(const std::string& bytes) {
  ReadHeader header;
  if (!header.ParseFromString(bytes) || header.crcs_size() != 1) {
    return absl::DataLossError(
        fmt::format("the header of one block's read has {} CRCs", header.crcs_size()));
  }
  return header;
}

uint64_t BytesOf(const ReadSource& source) {
  uint64_t bytes = 0;
  for (const std::span<const std::byte> part : source.parts) bytes += part.size();
  return bytes;
}

}  // namespace

BlockReads::~BlockReads() {
  for (const TransferId transfer : transfers_) peers_.Cancel(transfer);
  for (const auto& read : own_reads_) executor_.Cancel(read->timeout);
}

void BlockReads::Cancel() {
  for (const TransferId transfer : transfers_) peers_.Cancel(transfer);
  for (const auto& read : own_reads_) {
    if (!read->is_landing) EndOwnSoon(read, absl::CancelledError("the read was cancelled"));
  }
}

void BlockReads::Read(NodeSlot from, const ReadRequest& request, std::span<std::byte> into,
                      Done done) {
  if (own_ && from == peers_.self()) return ReadOwn(request, into, std::move(done));
  auto transfer = std::make_shared<TransferId>();  // known to its own end
  *transfer = peers_.Read(from, request.SerializeAsString(), into, timeout_,
                          lifetime_.Bind([this, transfer, done = std::move(done)](
                                             absl::StatusOr<std::string> header) mutable {
                            transfers_.erase(*transfer);
                            done(header.ok() ? ParseHeader(*header) : header.status());
                          }));
  transfers_.insert(*transfer);
}

void BlockReads::ReadOwn(const ReadRequest& request, std::span<std::byte> into, Done done) {
  auto read = std::make_shared<OwnRead>(OwnRead{into, std::move(done)});
  own_reads_.push_back(read);
  read->timeout = executor_.After(timeout_, [this, read] {
    EndOwn(read, absl::DeadlineExceededError(
                     fmt::format("node {} did not give its own block in time", peers_.self())));
  });
  own_(request, into.size(), lifetime_.Bind([this, read](absl::StatusOr<ReadSource> source) {
    OnOwnSource(read, std::move(source));
  }));
}

void BlockReads::OnOwnSource(const std::shared_ptr<OwnRead>& read,
                             absl::StatusOr<ReadSource> source) {
  if (std::ranges::find(own_reads_, read) == own_reads_.end()) return;  // it is over already
  if (source.ok() && BytesOf(*source) != read->into.size()) {
    source = absl::DataLossError(
        fmt::format("{} bytes were to be read, {} are there", read->into.size(), BytesOf(*source)));
  }
  absl::StatusOr<ReadHeader> header = source.ok() ? ParseHeader(source->header) : source.status();
  if (!header.ok()) return EndOwnSoon(read, header.status());
  executor_.Cancel(std::exchange(read->timeout, TimerId::kNone));
  read->is_landing = true;
  pool_.Submit(
      [read, source = *std::move(source)] {
        std::byte* to = read->into.data();
        for (const std::span<const std::byte> part : source.parts) {
          std::memcpy(to, part.data(), part.size());
          to += part.size();
        }
      },
      executor_, lifetime_.Bind([this, read, header = *std::move(header)]() mutable {
        EndOwn(read, std::move(header));
      }));
}

void BlockReads::EndOwn(const std::shared_ptr<OwnRead>& read, absl::StatusOr<ReadHeader> result) {
  if (std::erase(own_reads_, read) == 0) return;
  executor_.Cancel(read->timeout);
  std::exchange(read->done, nullptr)(std::move(result));
}

void BlockReads::EndOwnSoon(const std::shared_ptr<OwnRead>& read, absl::Status status) {
  executor_.Post(
      lifetime_.Bind([this, read, status = std::move(status)] { EndOwn(read, status); }));
}

}  // namespace unreft::smp
