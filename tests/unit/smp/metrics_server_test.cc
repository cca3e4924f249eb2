#include "smp/node/metrics_server.h"

#include <absl/strings/str_split.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "base/asio_executor.h"
#include "base/unique_fd.h"

namespace unreft::smp {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Text() { return "unreft_up 1\n"; }
std::string Answer(const std::string& request) { return HttpAnswer(request, Text); }

TEST(HttpAnswer, IsOfMetricsAlone) {
  EXPECT_THAT(Answer("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
              StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(Answer("GET /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\nunreft_up 1\n"));
  EXPECT_THAT(Answer("GET /metrics?name=x HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Answer("HEAD /metrics HTTP/1.1\r\n\r\n"), HasSubstr("Content-Length: 12\r\n"));
  EXPECT_THAT(Answer("HEAD /metrics HTTP/1.1\r\n\r\n"), Not(HasSubstr("unreft_up")));
  EXPECT_THAT(Answer("GET /etc/passwd HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Answer("GET /metrics/.. HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Answer("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
}

TEST(HttpAnswer, WhatIsNoRequestIsRefused) {
  EXPECT_EQ(Answer(""), "");
  EXPECT_EQ(Answer("GET /metrics HTTP/1.1\r\n"), "");
  EXPECT_THAT(Answer(std::string(8192, 'x')), StartsWith("HTTP/1.1 431"));
  for (const char* request : {"\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n",
                              "GET /metrics SSH-2.0\r\n\r\n", "\x16\x03\x01\r\n\r\n"}) {
    EXPECT_THAT(Answer(request), StartsWith("HTTP/1.1 400")) << request;
  }
}

// The server in a thread of its own; the test is a client like any other.
class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() {
    server_ = *MetricsServer::Start(executor_, "0", Text);
    const std::vector<std::string> parts = absl::StrSplit(server_->address(), ':');
    EXPECT_EQ(parts[0], "127.0.0.1");
    port_ = static_cast<uint16_t>(std::stoi(parts[1]));
    thread_ = std::thread([this] { executor_.Run(); });
  }
  ~MetricsServerTest() override {
    executor_.Post([this] {
      server_.reset();
      executor_.Stop();
    });
    thread_.join();
  }

  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static void Say(const UniqueFd& fd, const std::string& text) {
    EXPECT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  static std::string ReadAll(const UniqueFd& fd) {
    std::string text;
    char buffer[256];
    for (ssize_t n = 0; (n = recv(fd.get(), buffer, sizeof(buffer), 0)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }

  AsioExecutor executor_;
  std::unique_ptr<MetricsServer> server_;
  uint16_t port_ = 0;
  std::thread thread_;
};

TEST_F(MetricsServerTest, AnswersAndCloses) {
  const UniqueFd fd = Connect();
  Say(fd, "GET /metrics HT");
  Say(fd, "TP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(ReadAll(fd), EndsWith("unreft_up 1\n"));
}

TEST_F(MetricsServerTest, WhoSaysNothingKeepsNobodyOutForLong) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connect());
  const UniqueFd fd = Connect();
  Say(fd, "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadAll(fd), EndsWith("unreft_up 1\n"));
}

TEST_F(MetricsServerTest, WhereItCannotListenIsSaid) {
  const auto taken = MetricsServer::Start(executor_, std::to_string(port_), Text);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr(std::to_string(port_)));
  for (const char* listen : {"", "localhost:9", "127.0.0.1", "127.0.0.1:70000", "1:2:3", ":::"}) {
    const auto bad = MetricsServer::Start(executor_, listen, Text);
    EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument) << listen;
  }
}

}  // namespace
}  // namespace unreft::smp
