#include "transport/grpc_threads.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstddef>
#include <memory>
#include <new>

namespace unreft {
namespace {

// A call that fails at once, since nobody listens there; its channel holds the threads.
class CallToNobody {
 public:
  CallToNobody() {
    stub_.UnaryCall(&context_, "/unreft.Nobody/Nothing", grpc::StubOptions(), &request_, &response_,
                    [](grpc::Status) {});
  }

 private:
  std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel("unix:/proc/nobody", grpc::InsecureChannelCredentials());
  grpc::GenericStub stub_{channel_};
  grpc::ClientContext context_;
  grpc::Slice nothing_;
  grpc::ByteBuffer request_{&nothing_, 1};
  grpc::ByteBuffer response_;
};

}  // namespace

void KeepGrpcThreads() {
  // Never destroyed: that is its use. In static storage, where leak checkers find what it holds.
  alignas(CallToNobody) static std::byte memory[sizeof(CallToNobody)];
  [[maybe_unused]] static const auto* const kept = new (memory) CallToNobody();
}

}  // namespace unreft
