#include "smp/restore/decoded_blocks.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {

void DecodedBlocks::OnRead(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done) {
  if (absl::Status status = CheckRequest(request, bytes); !status.ok()) {
    return done(std::move(status));
  }
  const BlockId id{Rank{request.rank()}, request.first_block()};
  reader_.FindDecoder(id.rank, id.block,
                      lifetime_.Bind([this, id, done = std::move(done)](
                                         const absl::StatusOr<NodeSlot>& decoder) mutable {
                        if (!decoder.ok()) return done(decoder.status());
                        if (*decoder != state_.options.node) {
                          return done(absl::FailedPreconditionError(fmt::format(
                              "block {} of rank {} is decoded by node {}, not by node {}", id.block,
                              id.rank, *decoder, state_.options.node)));
                        }
                        Serve(id, std::move(done));
                      }));
}

absl::Status DecodedBlocks::CheckRequest(const ReadRequest& request, uint64_t bytes) const {
  const Version version = VersionOf(request);
  const CatalogSlab* slab =
      version == catalog_.version() ? catalog_.Find(Rank{request.rank()}) : nullptr;
  if (slab == nullptr) {
    return absl::NotFoundError(fmt::format("node {} restores no slab of rank {} of version {}",
                                           state_.options.node, request.rank(), version));
  }
  if (request.blocks() == 1 && request.first_block() < slab->crcs.size() &&
      bytes == state_.options.block_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "version {} of rank {}: blocks {}+{} were asked for in {} bytes, a read is of one of {} "
      "blocks of {} bytes",
      version, request.rank(), request.first_block(), request.blocks(), bytes, slab->crcs.size(),
      state_.options.block_bytes));
}

void DecodedBlocks::Serve(BlockId id, SlabSource::ReadDone done) {
  StagedBlocks* const area = blocks_();
  if (area == nullptr) {
    const std::string problem = fmt::format(
        "node {} has no staging area to decode blocks for others in", state_.options.node);
    // It is made when a rank of this node restores.
    return done(state_.sessions.empty() ? absl::FailedPreconditionError(problem)
                                        : absl::NotFoundError(problem));
  }
  StagedBlocks& blocks = *area;
  if (serving_++ == 0) taker_ = blocks.Join({.on_fetch = [](BlockId) {}, .on_room = [] {}});
  if (const auto lent = lent_.find(id); lent != lent_.end()) {
    if (const auto held = lent->second.lock()) return Send(held, blocks, std::move(done));
  }
  std::vector<SlabSource::ReadDone>& waiting = waiting_[id];
  waiting.push_back(std::move(done));
  if (waiting.size() > 1) return;
  const bool is_taken = blocks.Take(
      taker_, id, lifetime_.Bind([this, id, &blocks](absl::StatusOr<StagedBlocks::Hold> block) {
        OnBlock(id, blocks, block);
      }));
  if (is_taken) return;
  OnBlock(id, blocks,
          absl::ResourceExhaustedError(
              fmt::format("node {} has no room to decode block {} of rank {} for others",
                          state_.options.node, id.block, id.rank)));
}

void DecodedBlocks::OnBlock(BlockId id, StagedBlocks& blocks,
                            const absl::StatusOr<StagedBlocks::Hold>& block) {
  const auto waiting = waiting_.extract(id);
  if (block.ok()) lent_[id] = *block;
  for (SlabSource::ReadDone& done : waiting.mapped()) {
    if (block.ok()) {
      Send(*block, blocks, std::move(done));
    } else {
      OnServed(blocks);
      done(block.status());
    }
  }
}

void DecodedBlocks::Send(const StagedBlocks::Hold& block, StagedBlocks& blocks,
                         SlabSource::ReadDone done) {
  ReadHeader header;
  header.add_crcs(reader_.CrcOf(block->id.rank, block->id.block));
  ReadSource source;
  source.header = header.SerializeAsString();
  source.parts.push_back(block->place.bytes());
  source.hold = HoldUntilRead(state_.seams.executor, block->segment,
                              [held = block, end = lifetime_.Bind([this, &blocks] {
                                OnServed(blocks);
                              })]() mutable { end(); });
  done(std::move(source));
}

void DecodedBlocks::OnServed(StagedBlocks& blocks) {
  if (--serving_ > 0) return;
  blocks.Leave(taker_);
  lent_.clear();
}

}  // namespace unreft::smp
