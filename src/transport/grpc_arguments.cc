#include "transport/grpc_arguments.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>
#include <vector>

#include "transport/grpc_bytes.h"

namespace unreft {
namespace {

int Milliseconds(Duration duration) {
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<int64_t>(count, 1, INT_MAX));
}

int MessageBytesMax(const GrpcTransportOptions& options) {
  return static_cast<int>(
      std::min<size_t>(options.message_bytes_max + grpc_bytes::kOverheadBytesMax, INT_MAX));
}

// Of both ends. Large frames and read chunks cost less CPU per byte of bulk.
std::vector<std::pair<const char*, int>> CommonArguments(const GrpcTransportOptions& options) {
  return {
      {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20},
      {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20},
      {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 1 << 20},
      {GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10},
      {GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 64 << 10},
      {GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 256 << 10},
      {GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time)},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive_timeout)},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},  // no limit
  };
}

}  // namespace

grpc::ChannelArguments GrpcChannelArguments(const GrpcTransportOptions& options,
                                            const std::string& address) {
  grpc::ChannelArguments arguments;
  for (const auto& [name, value] : CommonArguments(options)) arguments.SetInt(name, value);
  arguments.SetMaxReceiveMessageSize(MessageBytesMax(options));
  arguments.SetMaxSendMessageSize(MessageBytesMax(options));
  // A transport's connections are its own and go where it says; nothing is tried twice behind it.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, Milliseconds(options.channel_idle_max));
  // gRPC's name for how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(options.connect_timeout));
  // On this machine an attempt costs nothing, and a daemon comes back at the same address.
  constexpr int kLocalBackoffMaxMs = 100;
  const int backoff_max_ms =
      IsUnixAddress(address) ? kLocalBackoffMaxMs : Milliseconds(options.reconnect_backoff_max);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   std::min(Milliseconds(options.reconnect_backoff_min), backoff_max_ms));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, backoff_max_ms);
  return arguments;
}

WireUse WireUseOf(std::string what, const GrpcTransportOptions& options) {
  return {.what = std::move(what),
          .tls = "transport_tls_ca, transport_tls_cert, transport_tls_key",
          .has_tls = options.tls.enabled,
          .may_be_open = options.insecure};
}

void SetGrpcServerArguments(const GrpcTransportOptions& options, grpc::ServerBuilder& builder) {
  for (const auto& [name, value] : CommonArguments(options)) {
    builder.AddChannelArgument(name, value);
  }
  builder.SetMaxReceiveMessageSize(MessageBytesMax(options));
  builder.SetMaxSendMessageSize(MessageBytesMax(options));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(options.connect_timeout));
  // Other nodes may ping as often as this one does.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(options.keepalive_time / 2));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

}  // namespace unreft
