// A gRPC server and a caller of one job, over whatever they are made with.
#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/world.h"
#include "tests/fakes/test_certificates.h"
#include "transport/grpc_transport.h"

namespace unreft {

using Reply = absl::StatusOr<std::string>;

class GrpcTransportTest : public testing::Test {
 protected:
  ~GrpcTransportTest() override {
    world_.InTurn([this] {
      caller_.reset();
      server_.reset();
    });
  }

  std::unique_ptr<Transport> New(const std::string& job, GrpcTlsOptions tls = {}) {
    std::unique_ptr<Transport> transport;
    world_.InTurn([&] {
      auto made =
          NewGrpcTransport(world_.asio(), {.job = job, .tls = std::move(tls), .insecure = true});
      UNREFT_CHECK(made.ok(), "{}", made.status().ToString());
      transport = *std::move(made);
    });
    return transport;
  }
  void MakeServer(const std::string& job, GrpcTlsOptions tls = {}) {
    server_ = New(job, std::move(tls));
    world_.InTurn([this] {
      server_->Serve("hello", [this](std::string, Transport::CallDone done) {
        ++served_;
        done("welcome");
      });
    });
  }

  Reply Call() {
    std::vector<Reply> replies;
    world_.InTurn([&] {
      caller_->Call(server_->address(), "hello", "", std::chrono::seconds(20),
                    [&](Reply reply) { replies.push_back(std::move(reply)); });
    });
    EXPECT_TRUE(world_.RunUntil([&] { return !replies.empty(); }));
    return replies[0];
  }
  // Whether calls come through once the backoff allows it.
  bool ReachesAgain() {
    for (int i = 0; i < 1000; ++i) {
      if (Call().ok()) return true;
      world_.asio().RunOneFor(std::chrono::milliseconds(20));
    }
    return false;
  }
  absl::Status CallFrom(const std::string& job, GrpcTlsOptions tls = {}) {
    caller_ = New(job, std::move(tls));
    return Call().status();
  }

  // What a program that is no Transport hears.
  grpc::Status RawCall(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                       const std::string& job) {
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("node");
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    grpc::GenericStub stub(grpc::CreateCustomChannel(server_->address(), credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.AddMetadata("unreft-job-bin", job);
    grpc::ByteBuffer request;
    grpc::ByteBuffer reply;
    const grpc::Slice slice("x");
    request = grpc::ByteBuffer(&slice, 1);
    std::promise<grpc::Status> ended;
    stub.UnaryCall(&context, "/unreft.Call/hello", {}, &request, &reply,
                   [&](grpc::Status status) { ended.set_value(std::move(status)); });
    auto result = ended.get_future();
    while (result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      world_.asio().RunOneFor(std::chrono::milliseconds(1));
    }
    return result.get();
  }
  static std::string Text(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  AsioWorld world_;
  TestCertificates certificates_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> caller_;
  int served_ = 0;
};

}  // namespace unreft
