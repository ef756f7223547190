// Apache Pulsar's command line pulsar-admin: runs many commands in one process.
//
// Arguments: service URL, admin URL.  Each line of the input is a command, its words separated by
// tabs.  For each command the output has what the command wrote, and then a line "<<ok>>" or
// "<<failed>>".  A line that begins with "properties" has `key=value` words: further settings of the
// tool, such as credentials, for the commands behind it.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

public final class Admin extends PulsarAdminTool {
  private Admin(Properties properties) throws Exception {
    super(properties);
  }

  private static Properties properties(String serviceUrl, String adminUrl, String... words) {
    Properties properties = new Properties();
    properties.put("webServiceUrl", adminUrl);
    properties.put("brokerServiceUrl", serviceUrl);
    for (String word : words) {
      String[] pair = word.split("=", 2);
      if (pair.length == 2) {
        properties.put(pair[0], pair[1]);
      }
    }
    return properties;
  }

  public static void main(String[] args) throws Exception {
    PrintStream out = System.out;
    Admin admin = new Admin(properties(args[0], args[1]));
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    String line;
    while ((line = lines.readLine()) != null) {
      ByteArrayOutputStream written = new ByteArrayOutputStream();
      PrintStream captured = new PrintStream(written, true);
      System.setOut(captured);
      System.setErr(captured);
      boolean ok = false;
      try {
        String[] words = line.split("\t");
        if (words[0].equals("properties")) {
          admin = new Admin(properties(args[0], args[1], words));
          ok = true;
        } else {
          ok = admin.run(words);
        }
      } catch (Throwable error) {
        captured.println(error);
      }
      out.println(written.toString().strip());
      out.println(ok ? "<<ok>>" : "<<failed>>");
      out.flush();
    }
    System.exit(0); // The clients of the commands leave threads behind.
  }
}
