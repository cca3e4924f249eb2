#include "transport/grpc_channels.h"

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <utility>

#include "base/wire_address.h"
#include "transport/grpc_arguments.h"

namespace unreft {

absl::StatusOr<GrpcChannel*> GrpcChannels::Acquire(const std::string& address, Time now) {
  DropIdle(now);
  if (absl::Status status = CheckPeer(address); !status.ok()) return status;
  auto found = channels_.find(address);
  if (found == channels_.end()) {
    if (channels_.size() >= options_.channels_max && !DropOldestIdle()) {
      return absl::ResourceExhaustedError(fmt::format("{} channels are in use, channels_max is {}",
                                                      channels_.size(), options_.channels_max));
    }
    found = channels_.emplace(address, Connect(address)).first;
  }
  GrpcChannel& channel = *found->second;
  ++channel.rpcs;
  channel.last_use = now;
  return &channel;
}

void GrpcChannels::Release(GrpcChannel& channel, Time now) {
  --channel.rpcs;
  channel.last_use = now;
}

// A new channel is better than its backoff alone begun anew: calls wait for its first attempt to
// connect, while those of one that has failed before fail until it is connected again.
void GrpcChannels::ReconnectNow(const std::string& address) {
  const auto found = channels_.find(address);
  if (found == channels_.end()) return;
  GrpcChannel& channel = *found->second;
  if (channel.channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) return;
  if (channel.rpcs == 0) {
    channels_.erase(found);
  } else {
    grpc::experimental::ChannelResetConnectionBackoff(channel.channel.get());
  }
}

absl::Status GrpcChannels::CheckPeer(const std::string& address) const {
  if (address.empty()) return absl::OkStatus();  // of nobody: gRPC says so
  absl::Status status = CheckWire(address, WireUseOf("the node there", options_));
  if (absl::IsNotFound(status)) return absl::UnavailableError(status.message());
  return status;
}

std::unique_ptr<GrpcChannel> GrpcChannels::Connect(const std::string& address) const {
  auto refusal = std::make_shared<ServerRefusal>();
  auto channel = std::make_unique<GrpcChannel>(grpc::CreateCustomChannel(
      GrpcName(address), identity_.ForChannel(refusal), GrpcChannelArguments(options_, address)));
  channel->refusal = std::move(refusal);
  return channel;
}

void GrpcChannels::DropIdle(Time now) {
  std::erase_if(channels_, [&](const auto& entry) {
    const GrpcChannel& channel = *entry.second;
    return channel.rpcs == 0 && now - channel.last_use > options_.channel_idle_max;
  });
}

bool GrpcChannels::DropOldestIdle() {
  auto oldest = channels_.end();
  for (auto it = channels_.begin(); it != channels_.end(); ++it) {
    if (it->second->rpcs > 0) continue;
    if (oldest == channels_.end() || it->second->last_use < oldest->second->last_use) oldest = it;
  }
  if (oldest == channels_.end()) return false;
  channels_.erase(oldest);
  return true;
}

}  // namespace unreft
