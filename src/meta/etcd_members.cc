#include "meta/etcd_members.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <grpcpp/create_channel.h>

#include <chrono>
#include <utility>

#include "base/wire_address.h"
#include "meta/grpc_common.h"

namespace unreft::meta {
namespace {

struct Endpoint {
  std::string text;    // as it was given
  std::string target;  // gRPC's name for it
  std::string host;    // that its certificate has to name; empty: a socket file
};

absl::Status Wrong(const std::string& endpoints, const std::string& found) {
  return absl::InvalidArgumentError(
      fmt::format("meta_endpoints '{}': needed HOST:PORT of each member, or unix:/PATH, found '{}'",
                  endpoints, found));
}

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& endpoints, const std::string& text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == 0 || colon == std::string::npos ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port == 0 || port > 65535) {
    return Wrong(endpoints, text);
  }
  Endpoint endpoint{.text = text, .target = "", .host = text.substr(0, colon)};
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']')) {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
    endpoint.target = "ipv6:" + text;
  } else if (endpoint.host.find(':') != std::string::npos) {
    return Wrong(endpoints, text);
  } else {
    const bool is_v4 = endpoint.host.find_first_not_of("0123456789.") == std::string::npos;
    endpoint.target = (is_v4 ? "ipv4:" : "dns:///") + text;
  }
  if (endpoint.host.empty()) return Wrong(endpoints, text);
  return endpoint;
}

absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(const std::string& endpoints) {
  if (IsUnixAddress(endpoints)) {
    return std::vector<Endpoint>{{.text = endpoints, .target = GrpcName(endpoints), .host = ""}};
  }
  std::vector<Endpoint> all;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(endpoints, ','))) {
    if (part.find("://") != std::string::npos) {
      return absl::InvalidArgumentError(fmt::format(
          "meta_endpoints '{}': needed HOST:PORT without a scheme, found '{}'; whether it is TLS "
          "is said by meta_tls_ca, meta_tls_cert, meta_tls_key",
          endpoints, part));
    }
    absl::StatusOr<Endpoint> endpoint = ParseEndpoint(endpoints, part);
    if (!endpoint.ok()) return endpoint.status();
    all.push_back(*std::move(endpoint));
  }
  return all;
}

grpc::ChannelArguments ArgumentsOf(const EtcdKvOptions& options, const Endpoint& endpoint) {
  const auto ms = [](Duration duration) {
    return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
  };
  grpc::ChannelArguments arguments;
  // All addresses of a name. Of a socket file no connection is made but for a call, before which
  // CheckWire looks.
  if (!endpoint.host.empty()) arguments.SetLoadBalancingPolicyName("round_robin");
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.reply_bytes_max));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, ms(options.retry_delay_min));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, ms(options.call_timeout));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, ms(options.reconnect_delay_max));
  // A member that is gone without a word is noticed; etcd allows a ping each 5 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // What is asked again is for EtcdKv to say.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // clients of one process are strangers
  if (!options.tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  }
  return arguments;
}

EtcdMember Connect(const EtcdKvOptions& options, const Endpoint& endpoint,
                   TlsCertificates* certificates) {
  EtcdMember member;
  member.endpoint = endpoint.text;
  auto handshake = std::make_shared<HandshakeResult>();
  member.handshake = handshake;
  const std::string name =
      options.tls.server_name.empty() ? endpoint.host : options.tls.server_name;
  const auto credentials = ClientCredentials(
      certificates, name,
      [handshake = std::move(handshake)](const absl::Status& status) { handshake->Set(status); });
  member.channel =
      grpc::CreateCustomChannel(endpoint.target, credentials, ArgumentsOf(options, endpoint));
  member.kv = etcdserverpb::KV::NewStub(member.channel);
  member.lease = etcdserverpb::Lease::NewStub(member.channel);
  member.watch = etcdserverpb::Watch::NewStub(member.channel);
  member.maintenance = etcdserverpb::Maintenance::NewStub(member.channel);
  if (!endpoint.host.empty()) member.channel->GetState(true);  // connect
  return member;
}

}  // namespace

void HandshakeResult::Set(absl::Status status) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
}

absl::Status HandshakeResult::Get() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

absl::Status EtcdMembers::Check(const std::string& endpoints) {
  return ParseEndpoints(endpoints).status();
}

absl::StatusOr<std::unique_ptr<EtcdMembers>> EtcdMembers::Create(
    const EtcdKvOptions& options, std::shared_ptr<TlsCertificates> certificates) {
  absl::StatusOr<std::vector<Endpoint>> endpoints = ParseEndpoints(options.endpoints);
  if (!endpoints.ok()) return endpoints.status();
  std::unique_ptr<EtcdMembers> members(
      new EtcdMembers(options.tls.enabled(), options.retry_delay_min, options.unwritten_key));
  for (const Endpoint& endpoint : *endpoints) {
    members->members_.push_back(Connect(options, endpoint, certificates.get()));
  }
  return members;
}

void EtcdMembers::Hold(Executor& executor, CallSet& calls) {
  if (is_single()) return;
  executor_ = &executor;
  calls_ = &calls;
  streams_.resize(members_.size());
  for (size_t i = 0; i < members_.size(); ++i) HoldOne(i);
}

void EtcdMembers::HoldOne(size_t member) {
  etcdserverpb::WatchRequest request;
  request.mutable_create_request()->set_key(unwritten_key_);
  auto stream = std::make_shared<WatchStream>();
  streams_[member] = stream;
  stream->context.set_wait_for_ready(true);
  // Weak: the stream owns these.
  std::weak_ptr<WatchStream> weak = stream;
  stream->Start(*members_[member].watch, std::move(request), *calls_,
                {.on_response =
                     [executor = executor_, weak, alive = alive_] {
                       executor->Post([alive, stream = weak.lock()] {
                         if (*alive && stream != nullptr) stream->Read();
                       });
                     },
                 .on_end =
                     [this, executor = executor_, member, alive = alive_](const grpc::Status&) {
                       executor->Post([this, executor, member, alive] {
                         if (!*alive) return;
                         streams_[member]->Close();
                         executor->After(hold_again_, [this, member, alive] {
                           if (*alive) HoldOne(member);
                         });
                       });
                     }});
}

void EtcdMembers::Stop() {
  *alive_ = false;
  for (const auto& stream : streams_) stream->Close();
}

EtcdMember* EtcdMembers::Next() {
  if (is_single()) return &members_.front();
  for (size_t i = 0; i < members_.size(); ++i) {
    EtcdMember& member = members_[(next_ + i) % members_.size()];
    if (member.channel->GetState(true) != GRPC_CHANNEL_READY) continue;
    next_ = (next_ + i + 1) % members_.size();
    return &member;
  }
  return nullptr;
}

std::string EtcdMembers::WhyNotConnected() const {
  std::vector<std::string> whys;
  for (const EtcdMember& member : members_) {
    const absl::Status handshake = member.handshake->Get();
    if (!handshake.ok()) {
      whys.push_back(fmt::format("{}: {}", member.endpoint, std::string(handshake.message())));
    }
  }
  return whys.empty() ? WhyNobodyAnswers() : absl::StrJoin(whys, "; ");
}

std::map<std::string, std::string> EtcdMembers::Away() const {
  std::map<std::string, std::string> away;
  if (is_single()) return away;
  for (const EtcdMember& member : members_) {
    if (member.connected()) continue;
    const absl::Status handshake = member.handshake->Get();
    away[member.endpoint] = handshake.ok() ? WhyNobodyAnswers() : std::string(handshake.message());
  }
  return away;
}

const char* EtcdMembers::WhyNobodyAnswers() const {
  return has_tls_ ? "nobody serves there, or not by TLS, or it refuses the certificate of this side"
                  : "nobody serves there, or only by TLS";
}

}  // namespace unreft::meta
