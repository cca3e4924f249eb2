#include "smp/node/metrics_server.h"

#include <absl/strings/numbers.h>
#include <fmt/format.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <string_view>
#include <utility>

namespace unreft::smp {
namespace {

using Tcp = boost::asio::ip::tcp;
using Error = boost::system::error_code;

constexpr size_t kConnectionsMax = 16;
constexpr size_t kRequestBytesMax = 8192;
constexpr std::chrono::seconds kDeadline(5);  // from the connection to the last byte
constexpr std::chrono::seconds kPause(1);
constexpr char kType[] = "text/plain; version=0.0.4; charset=utf-8";

std::string Response(std::string_view status, std::string_view body, bool with_body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, kType, body.size(), with_body ? body : "");
}

absl::StatusOr<Tcp::endpoint> EndpointOf(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  std::string host = colon == std::string::npos ? "127.0.0.1" : listen.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? listen : listen.substr(colon + 1);
  Error error;
  const auto address = boost::asio::ip::make_address(host, error);
  uint32_t number = 0;
  if (error || !absl::SimpleAtoi(port, &number) || number > UINT16_MAX) {
    return absl::InvalidArgumentError(fmt::format(
        "metrics_listen: needed ADDRESS:PORT, [ADDRESS]:PORT or PORT, in numbers, found '{}'",
        listen));
  }
  return Tcp::endpoint(address, static_cast<uint16_t>(number));
}

}  // namespace

struct MetricsServer::Acceptor {
  explicit Acceptor(boost::asio::io_context& context) : acceptor(context), pause(context) {}
  Tcp::acceptor acceptor;
  boost::asio::steady_timer pause;  // after a failure, as for want of descriptors
};

struct MetricsServer::Connection {
  explicit Connection(Tcp::socket taken)
      : socket(std::move(taken)), deadline(socket.get_executor()) {}
  Tcp::socket socket;
  boost::asio::steady_timer deadline;
  std::string request;
  std::string answer;
  std::array<char, 1024> buffer{};
  int running = 0;  // operations that hold on to this
  bool is_closed = false;
};

std::string HttpAnswer(const std::string& request, const std::function<std::string()>& text) {
  if (request.find("\r\n\r\n") == std::string::npos) {
    if (request.size() < kRequestBytesMax) return "";
    return Response("431 Request Header Fields Too Large", "", false);
  }
  const std::string line = request.substr(0, request.find("\r\n"));
  const size_t space = line.find(' ');
  const std::string method = line.substr(0, space);
  std::string target = space == std::string::npos ? "" : line.substr(space + 1);
  const size_t end = target.find(' ');
  if (end == std::string::npos || !target.substr(end + 1).starts_with("HTTP/1.")) {
    return Response("400 Bad Request", "needed: GET /metrics HTTP/1.1\n", true);
  }
  target = target.substr(0, std::min(end, target.find('?')));
  if (method != "GET" && method != "HEAD") {
    return Response("405 Method Not Allowed", "needed: GET\n", true);
  }
  if (target != "/metrics") return Response("404 Not Found", "needed: /metrics\n", method == "GET");
  return Response("200 OK", text(), method == "GET");
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    AsioExecutor& executor, const std::string& listen, std::function<std::string()> text) {
  const absl::StatusOr<Tcp::endpoint> endpoint = EndpointOf(listen);
  if (!endpoint.ok()) return endpoint.status();
  auto acceptor = std::make_unique<Acceptor>(executor.context());
  Error error;
  acceptor->acceptor.open(endpoint->protocol(), error);
  if (!error) acceptor->acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor->acceptor.bind(*endpoint, error);
  if (!error) acceptor->acceptor.listen(boost::asio::socket_base::max_listen_connections, error);
  if (error) {
    return absl::UnavailableError(
        fmt::format("metrics_listen: cannot listen at {}: {}", listen, error.message()));
  }
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(acceptor), std::move(text)));
  server->Accept();
  return server;
}

MetricsServer::MetricsServer(std::unique_ptr<Acceptor> acceptor, std::function<std::string()> text)
    : acceptor_(std::move(acceptor)), text_(std::move(text)) {
  const Tcp::endpoint local = acceptor_->acceptor.local_endpoint();
  const std::string host = local.address().to_string();
  address_ = fmt::format("{}:{}", local.address().is_v6() ? fmt::format("[{}]", host) : host,
                         local.port());
}

MetricsServer::~MetricsServer() = default;

void MetricsServer::Accept() {
  if (is_accepting_ || connections_.size() >= kConnectionsMax) return;
  is_accepting_ = true;
  acceptor_->acceptor.async_accept(lifetime_.Bind([this](Error error, Tcp::socket socket) {
    is_accepting_ = false;
    if (error == boost::asio::error::operation_aborted) return;
    if (error) return AcceptLater();
    const auto connection = connections_.emplace(connections_.end(), std::move(socket));
    connection->deadline.expires_after(kDeadline);
    ++connection->running;
    connection->deadline.async_wait(lifetime_.Bind([this, connection](Error) {
      --connection->running;
      Close(connection);
    }));
    Read(connection);
    Accept();
  }));
}

void MetricsServer::AcceptLater() {
  acceptor_->pause.expires_after(kPause);
  acceptor_->pause.async_wait(lifetime_.Bind([this](Error error) {
    if (!error) Accept();
  }));
}

void MetricsServer::Read(std::list<Connection>::iterator connection) {
  ++connection->running;
  connection->socket.async_read_some(boost::asio::buffer(connection->buffer),
                                     lifetime_.Bind([this, connection](Error error, size_t bytes) {
                                       --connection->running;
                                       if (error || connection->is_closed) return Close(connection);
                                       connection->request.append(connection->buffer.data(), bytes);
                                       connection->answer = HttpAnswer(connection->request, text_);
                                       if (connection->answer.empty()) return Read(connection);
                                       Answer(connection);
                                     }));
}

void MetricsServer::Answer(std::list<Connection>::iterator connection) {
  ++connection->running;
  boost::asio::async_write(connection->socket, boost::asio::buffer(connection->answer),
                           lifetime_.Bind([this, connection](Error, size_t) {
                             --connection->running;
                             Close(connection);
                           }));
}

// Gone when the last operation on it has ended.
void MetricsServer::Close(std::list<Connection>::iterator connection) {
  if (!std::exchange(connection->is_closed, true)) {
    connection->deadline.cancel();
    Error ignored;
    connection->socket.shutdown(Tcp::socket::shutdown_both, ignored);
    connection->socket.close(ignored);
  }
  if (connection->running > 0) return;
  connections_.erase(connection);
  Accept();
}

}  // namespace unreft::smp
